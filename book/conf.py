"""Sphinx's configuration of the course's site."""

project = "Attention, derived"
extensions = ["myst_nb", "book.formulas", "book.folds"]
html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [("explorer.js", {"defer": "defer"})]
html_title = project
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
# A summary of a hit would be fetched from its page, which browsers forbid in a folder.
html_show_search_summary = False
pygments_dark_style = "native"
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
