"""The stability atlas: real short trainings of many kinds of Transformer, and what was measured of each at step 0.

`python -m bench.atlas` says how it is made. What is trained, how a row is labelled and how the rows are split stands in
`design.py`, which was committed before the first training.
"""
