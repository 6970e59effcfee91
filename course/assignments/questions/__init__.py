"""One module an assignment: its questions, for the referee alone. A submission cannot read it."""
