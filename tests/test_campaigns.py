"""Campaigns do their share, and the same again for the same seed."""

from __future__ import annotations

from random import Random

import pytest

from tests.campaigns import Campaign, chance

pytestmark = pytest.mark.any_user


def test_a_campaign_does_a_twentieth_by_default() -> None:
    campaign = Campaign(long=False, random=Random())
    assert campaign.count(2000) == 100
    assert campaign.count(3) == 1
    assert campaign.seconds(60) == 3


def test_a_long_campaign_does_everything() -> None:
    campaign = Campaign(long=True, random=Random())
    assert campaign.count(2000) == 2000
    assert campaign.seconds(60) == 60


def test_the_seed_repeats_a_campaign() -> None:
    first = chance(7, "test_race").random()
    assert first == chance(7, "test_race").random()
    assert first != chance(8, "test_race").random()
    assert first != chance(7, "test_leak").random()
