"""A scikit-learn estimator over features: fit, predict, score by balanced accuracy."""

from sklearn.model_selection import GridSearchCV

from longtail.data import load
from longtail.estimator import LongTailClassifier

data = load("digits-lt")
x, y = data.train.inputs.numpy(), data.train.labels.numpy()
x_test, y_test = data.test.inputs.numpy(), data.test.labels.numpy()

model = LongTailClassifier(method="elm", random_state=0).fit(x, y)
print(f"balanced accuracy {model.score(x_test, y_test):.3f}")

# Choose a method by cross-validation on training data; the rarest class has two images, which allows two folds.
search = GridSearchCV(model, {"method": ["ce", "logadj"]}, cv=2).fit(x, y)
print(f"{search.best_params_['method']} chosen, balanced accuracy {search.score(x_test, y_test):.3f}")
