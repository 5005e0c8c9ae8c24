"""Image files for tests."""

from PIL import Image


def save_image(path, colour=(200, 10, 10), size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
