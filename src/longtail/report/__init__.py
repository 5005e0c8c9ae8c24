"""From runs to one ``Report`` value, and that as a page, Markdown, CSV and LaTeX. Nothing here sees a model.

``page.build(paths, out)`` writes a report, ``page.make(found)`` is it as a value. To read the room, in this order:
``grouping`` (runs become configurations of a data set), ``comparison`` (how far apart two are, and how sure that is),
``document`` (what a report is made of), ``tables`` and ``inventory``, ``gallery`` and ``figures`` (which there are, how
they are drawn), ``answer`` (which model to take), ``claims`` and ``paper`` (what the paper says), ``page``.
"""
