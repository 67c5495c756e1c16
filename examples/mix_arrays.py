"""Only arrays: four classifiers, each trained on three or four of the ten digits, and one consensus of them all.

None of them knows all classes, and one that never saw a digit votes on it none the less. Weighed by how familiar a
digit looks to each of them, sample by sample, they answer better than on average.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import trustmix as tm

images, digits = load_digits(return_X_y=True)
known, new, labels, truth = train_test_split(images / 16, digits, test_size=0.4, stratify=digits, random_state=0)

predictions, scores = [], []
for own in ([0, 1, 2], [2, 3, 4], [4, 5, 6, 7], [7, 8, 9]):
    mine = np.isin(labels, own)
    train_x, held_x, train_y, held_y = train_test_split(known[mine], labels[mine], test_size=0.3, random_state=0)
    model = LogisticRegression(max_iter=1000).fit(train_x, train_y)

    density = tm.ClassGaussians.fit(model.decision_function(held_x), held_y)  # on samples it was not trained on
    scores.append(density.log_prob(model.decision_function(new)))

    probabilities = np.zeros((len(new), 10))  # of all ten classes: zero for those it does not know
    probabilities[:, own] = model.predict_proba(new)
    predictions.append(probabilities)

for tau, name in ((0.0, "average (AVG)"), (0.25, "sUWA"), (1.0, "UWA")):
    teacher = tm.mix(predictions, scores, tau=tau)
    accuracy = (teacher.probabilities.argmax(1) == truth).mean()
    print(f"{name:14} {100 * accuracy:5.1f} %, {teacher.effective_clients.mean():.1f} of 4 models behind a label")
