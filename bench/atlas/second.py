"""A second try at a verdict from a short look, and at a rate from part of a training: `python -m bench.atlas second`.

The protocol, written down before any of its figures was looked at:

Fitted on   the cells of the first two sets (66 in which something was learnt). Target: log2 of the middle between the
            highest rate that has learnt and the next; for the best rate, of the middle of the good ones.
Variants    an answer is a regularised linear model of log rate. What it may see: the kind (placement, optimizer, width,
            depth, warm-up, start), the look (rates at which something happens, below), or both; how much it is
            regularised. Every combination that is tried is listed in VARIANTS, which is the count of what was tried.
Chosen      by the mean of the error in log2, at most 3 of each cell, over tasks left out in turn. Nested: the
            variant is chosen again within each fold, of what is left in it, so that the figure holds the choice as
            well. By task and by family.
Judged      once, on the second set of cells (`design.second`), which was drawn and committed before any of it was
            trained: the variant that tasks left out choose, fitted on all cells of the first two sets; beside it what
            the kind alone says, the rate alone (one constant for each optimizer), the rate with the lowest loss times
            a constant, the critical rate times a constant, and the verdict of `leadline inspect`.
Adopted     if within a factor of 2 it is right in at least 8 of 100 cells more than each of those (of the cells that
            both answer), wins more of the cells in which only one of the two is right than chance would in one of ten,
            is not behind within a factor of 4, and abstains on at most a fifth.
Amended     after 295 variants on the looks as they were (edge 53 to 62 %, kind 56 to 59; best 82 %, kind 80 to 83), and before
            the figures of what follows: a look's loss was that of 16 to 64 labels where a sequence has few, so all looks are
            measured again on 4,096 tokens, with attention logits, branches and diversity inside the model. All of
            the above stays. A second way is tried too: a logistic score of each rate, made to fall with it.
            Beside the edge as it is labelled another is reported, and not adopted: the highest rate that ends within
            HALF a nat of the best; a translator's edge holds rates whose attention never came to read the source.
A rate for `optim.lr=auto` from 1/8 or 1/4 of the updates: rules of RULES are compared on cells of the first two sets
            that hold looks and have no warm-up; that with the smallest mean of the loss above the best of the cell, at
            most 1 of each, is judged on the second set beside the lowest loss, and adopted if it ends nearer there,
            in the mean and in how many end within 0.1 nats, and does not fail more often.
"""
