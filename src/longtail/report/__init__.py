"""From runs to tables, figures and one page: nothing here sees a model, the five small files of a run suffice.

``page.build(paths, out)`` writes the report; ``page.make(found)`` is the report as a value, ``figures`` and ``tables``
can be used on their own.
"""
