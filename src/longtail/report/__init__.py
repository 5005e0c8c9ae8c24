"""From run folders to tables, figures and one page: nothing here sees a model or data, the five small files suffice.

``html.build(paths, out)`` makes the report; ``figures`` and ``tables`` can be used on their own.
"""
