"""dm-pix: the README's flips with `jit`, `vmap` and `pmap`; colors, augmentations, metrics, patches, batches."""

import dm_pix as pix
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import explain, report, shard

rng = np.random.default_rng(0)
image = rng.uniform(size=(12, 16, 3)).astype(np.float32)
other = jnp.clip(image + rng.normal(0, 0.1, size=image.shape).astype(np.float32), 0, 1)

report("flip", pix.flip_left_right(image)[0])
report("jit", jax.jit(pix.flip_left_right)(image)[0])
report("vmap", jax.vmap(pix.flip_left_right)(image[np.newaxis])[0, 0])
report("pmap", jax.pmap(pix.flip_left_right)(image[np.newaxis])[0, 0])


def summary(x):
    """Return the shape, the sum, and a weighted sum, which changes if elements are moved."""
    x = np.asarray(x, np.float64)
    return [*x.shape, x.sum(), (x.ravel() * np.cos(np.arange(x.size))).sum()]


key = jax.random.key(0)
for name, function in {
    "adjust_brightness": lambda x: pix.adjust_brightness(x, 0.2),
    "adjust_contrast": lambda x: pix.adjust_contrast(x, 1.5),
    "adjust_gamma": lambda x: pix.adjust_gamma(x, 0.7),
    "adjust_hue": lambda x: pix.adjust_hue(x, 0.1),
    "adjust_saturation": lambda x: pix.adjust_saturation(x, 1.5),
    "affine_transform": lambda x: pix.affine_transform(
        x, jnp.array([[0.9, 0.2, 0.0], [-0.1, 1.1, 0.0], [0.0, 0.0, 1.0]])
    ),
    "affine_transform, order 0": lambda x: pix.affine_transform(x, jnp.array([1.5, 0.7, 1.0]), order=0, mode="wrap"),
    "center_crop": lambda x: pix.center_crop(x, 7, 9),
    "elastic_deformation": lambda x: pix.elastic_deformation(key, x, alpha=5.0, sigma=2.0),
    "flip_up_down": pix.flip_up_down,
    "gaussian_blur": lambda x: pix.gaussian_blur(x, 1.0, 5.0),
    "pad_to_size": lambda x: pix.pad_to_size(x, 16, 20),
    "random_brightness": lambda x: pix.random_brightness(key, x, 0.2),
    "random_contrast": lambda x: pix.random_contrast(key, x, 0.5, 1.5),
    "random_crop": lambda x: pix.random_crop(key, x, (6, 6, 3)),
    "random_flip_left_right": lambda x: pix.random_flip_left_right(key, x),
    "random_hue": lambda x: pix.random_hue(key, x, 0.2),
    "random_saturation": lambda x: pix.random_saturation(key, x, 0.5, 1.5),
    "resize_with_crop_or_pad": lambda x: pix.resize_with_crop_or_pad(x, 10, 18),
    "rgb_to_grayscale": pix.rgb_to_grayscale,
    "rgb_to_hsl": pix.rgb_to_hsl,
    "rgb_to_hsv": pix.rgb_to_hsv,
    "rot90": lambda x: pix.rot90(x, 3),
    "rotate": lambda x: pix.rotate(x, 0.5, mode="mirror"),
    "solarize": lambda x: pix.solarize(x, 0.4),
    "depth_to_space": lambda x: pix.depth_to_space(x.reshape(12, 4, 12), 2),
    "space_to_depth": lambda x: pix.space_to_depth(x, 2),
    "extract_patches": lambda x: pix.extract_patches(x[None], (1, 4, 4, 1), (1, 2, 2, 1), (1, 1, 1, 1)),
}.items():
    report(name, summary(jax.jit(function)(image)))

for name in ("mae", "mse", "psnr", "rmse", "simse", "ssim"):
    report(name, getattr(pix, name)(image, other))
report("gradient of ssim", summary(jax.grad(lambda x: pix.ssim(x, other))(jnp.asarray(image))))

images = shard(rng.uniform(size=(16, 12, 12, 3)).astype(np.float32), "data")


@jax.jit
def augment(key, images):
    def one(key, image):
        flip_key, crop_key, hue_key = jax.random.split(key, 3)
        image = pix.random_flip_left_right(flip_key, image)
        image = pix.random_crop(crop_key, image, (8, 8, 3))
        return pix.gaussian_blur(pix.random_hue(hue_key, image, 0.1), 1.0, 3.0)

    augmented = jax.vmap(one)(jax.random.split(key, len(images)), images)
    return augmented, augmented.mean()


explain(augment, key, images)
augmented, mean = augment(key, images)
report("augmented", summary(augmented))
report("mean", mean)
