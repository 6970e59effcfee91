"""What runs fast, or holds where a formula would not: the rooms behind ``impl="torch"``."""
