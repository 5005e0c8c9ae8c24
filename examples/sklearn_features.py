"""A scikit-learn estimator over features: fit, predict, score by balanced accuracy."""

from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from longtail.data import load
from longtail.estimator import LongTailClassifier

data = load("digits-lt")
x, y = data.train.inputs.numpy(), data.train.labels.numpy()
x_test, y_test = data.test.inputs.numpy(), data.test.labels.numpy()

model = make_pipeline(StandardScaler(), LongTailClassifier(method="elm", random_state=0))
model.fit(x, y)
print(f"balanced accuracy {model.score(x_test, y_test):.3f}")

# Choose a method by cross-validation on training data; the two images of the rarest class allow two folds.
search = GridSearchCV(model, {"longtailclassifier__method": ["ce", "logadj"]}, cv=2)
search.fit(x, y)
print(f"{search.best_params_}: balanced accuracy {search.score(x_test, y_test):.3f}")
