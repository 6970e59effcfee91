"""The course as a static site: ``python -m book`` (or ``make book``) renders the stored notebooks.

``pages`` turns notebooks into Sphinx sources, ``formulas`` and ``folds`` are what Sphinx lacks for
them, ``conf`` is Sphinx's configuration, ``__main__`` builds and says where the site is.
"""
