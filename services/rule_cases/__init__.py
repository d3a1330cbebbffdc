"""Cases written beside rules: what these checks at these times should be told.  Pure.

:mod:`cases` reads them, :mod:`region` answers as one region on a clock that the cases move, :mod:`trial` compares.
"""
