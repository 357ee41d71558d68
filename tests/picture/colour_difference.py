"""How different two colours look: CIEDE2000, also to people with each kind of colour blindness."""

from __future__ import annotations

import numpy as np

SRGB_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])  # D65

# What is left of linear red, green and blue, after Machado, Oliveira and Fernandes (2009).
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def lab(colour: tuple[int, int, int], vision: str = "normal") -> np.ndarray:
    """CIELAB of a colour in red, green and blue from 0 to 255, as that vision has it."""
    part = np.array(colour) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    relative = SRGB_TO_XYZ @ seen / WHITE
    small = (24389 / 27 * relative + 16) / 116
    x, y, z = np.where(relative > 216 / 24389, np.cbrt(relative), small)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """CIEDE2000 of two colours in CIELAB, after Sharma, Wu and Dalal (2005)."""
    light, chroma, hue = zip(*_light_chroma_hue(one, other), strict=True)
    hue_step = (hue[1] - hue[0] + 180) % 360 - 180 if chroma[0] * chroma[1] else 0.0
    hue_change = 2 * np.sqrt(chroma[0] * chroma[1]) * np.sin(np.radians(hue_step / 2))
    middle_light, middle_chroma = np.mean(light), np.mean(chroma)
    middle_hue = hue[0] + hue_step / 2 if chroma[0] * chroma[1] else sum(hue)
    weight = (
        1
        - 0.17 * np.cos(np.radians(middle_hue - 30))
        + 0.24 * np.cos(np.radians(2 * middle_hue))
        + 0.32 * np.cos(np.radians(3 * middle_hue + 6))
        - 0.20 * np.cos(np.radians(4 * middle_hue - 63))
    )
    from_middle = (middle_light - 50) ** 2
    in_light = (light[1] - light[0]) / (1 + 0.015 * from_middle / np.sqrt(20 + from_middle))
    in_chroma = (chroma[1] - chroma[0]) / (1 + 0.045 * middle_chroma)
    in_hue = hue_change / (1 + 0.015 * middle_chroma * weight)
    blue = np.exp(-((((middle_hue % 360) - 275) / 25) ** 2))
    turned = -2 * _chroma_share(middle_chroma) * np.sin(np.radians(60 * blue))
    return float(np.sqrt(in_light**2 + in_chroma**2 + in_hue**2 + turned * in_chroma * in_hue))


def _light_chroma_hue(one: np.ndarray, other: np.ndarray) -> list[tuple[float, float, float]]:
    mean_chroma = (np.hypot(*one[1:]) + np.hypot(*other[1:])) / 2
    stretch = 1 + 0.5 * (1 - _chroma_share(mean_chroma))
    found = []
    for light, a, b in (one, other):
        chroma, hue = np.hypot(stretch * a, b), np.degrees(np.arctan2(b, stretch * a)) % 360
        found.append((light, chroma, hue))
    return found


def _chroma_share(chroma: float) -> float:
    return np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
