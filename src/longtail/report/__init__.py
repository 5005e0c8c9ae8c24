"""From runs to one ``Report`` value, and that as a page, Markdown, CSV and LaTeX. Nothing here sees a model.

``page.build(paths, out)`` writes a report, ``page.make(found)`` is it as a value. To read the room, in this order:
``grouping`` (runs become configurations of a data set), ``comparison`` (how far apart two are, and how sure that is),
``document`` (what a report is made of, and its printing), ``tables``, ``gallery`` and ``figures`` (which, and how
drawn), ``growth`` (what a method adds as data grow), ``claims`` and ``paper`` (what the
paper says), ``page`` (the answer, and all that in its order).
"""
