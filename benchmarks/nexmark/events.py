"""The events: of each 50, one is a new person, three are new auctions, 46 are bids.

Who bids for what follows the generator of Apache Beam and of nexmark-flink (hot auctions, hot sellers, hot bidders,
prices by powers of ten, auctions that end after a number of events), with one difference: texts that nobody looks at
(``extra``, ``description``) have a fixed length. An event is a function of its number and the seed, so any range of
events can be made by itself, and batches change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from benchmarks.nexmark.dice import Dice, Numbers

PERSON_PART: Final = 1
AUCTION_PART: Final = 3
WHOLE: Final = 50
FIRST_ID: Final = 1000
FIRST_CATEGORY: Final = 10
_HOT_STEP: Final = 100
_ACTIVE_PEOPLE: Final = 1000
_PEOPLE_AHEAD: Final = 10
_AUCTIONS_IN_FLIGHT: Final = 100
_AUCTIONS_AHEAD: Final = 10
_CHANNELS: Final = 10_000

_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
_FIRST_NAMES: Final = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")

TIME: Final = pl.Datetime("us", "UTC")
_INTEGER: Final = pl.Int64()
_TEXT: Final = pl.String()
PERSON: Final = pl.Schema(
    {
        "id": _INTEGER,
        "name": _TEXT,
        "emailAddress": _TEXT,
        "creditCard": _TEXT,
        "city": _TEXT,
        "state": _TEXT,
        "dateTime": TIME,
        "extra": _TEXT,
    }
)
AUCTION: Final = pl.Schema(
    {
        "id": _INTEGER,
        "itemName": _TEXT,
        "description": _TEXT,
        "initialBid": _INTEGER,
        "reserve": _INTEGER,
        "dateTime": TIME,
        "expires": TIME,
        "seller": _INTEGER,
        "category": _INTEGER,
        "extra": _TEXT,
    }
)
BID: Final = pl.Schema(
    {
        "auction": _INTEGER,
        "bidder": _INTEGER,
        "price": _INTEGER,
        "channel": _TEXT,
        "url": _TEXT,
        "dateTime": TIME,
        "extra": _TEXT,
    }
)
SCHEMAS: Final = {"person": PERSON, "auction": AUCTION, "bid": BID}


@dataclass(frozen=True, slots=True)
class Nexmark:
    """An auction house.

    Args:
        seed: Other seeds give other events.
        base_us: Event time of the first event, in microseconds.
        step_us: Event time between two events, in microseconds (100: 10,000 events a second).
        disorder_us: By how much an event's time may lie before its turn, in microseconds: the disorder's bound.
    """

    seed: int = 1
    base_us: int = 1_436_918_400_000_000
    step_us: int = 100
    disorder_us: int = 0
    _channels: pl.DataFrame = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_channels", _channels(self.seed))

    def events(self, first: int, after: int) -> dict[str, pl.DataFrame]:
        """Events from number ``first`` up to but without ``after``, by kind, each in order of its numbers.

        Returns:
            ``person``, ``auction`` and ``bid``, with the columns of :data:`SCHEMAS`.
        """
        numbers = np.arange(first, after, dtype=np.int64)
        place = numbers % WHOLE
        return {
            "person": self._persons(numbers[place < PERSON_PART]),
            "auction": self._auctions(numbers[(place >= PERSON_PART) & (place < PERSON_PART + AUCTION_PART)]),
            "bid": self._bids(numbers[place >= PERSON_PART + AUCTION_PART]),
        }

    def _persons(self, numbers: Numbers) -> pl.DataFrame:
        dice = Dice(self.seed, numbers)
        digits = [dice.below(10_000, salt) for salt in range(10, 14)]
        local, domain = dice.letters(8, 14), dice.letters(8, 15)
        made = pl.DataFrame(
            {
                "first": _pick(_FIRST_NAMES, dice.below(len(_FIRST_NAMES), 16)),
                "last": _pick(_LAST_NAMES, dice.below(len(_LAST_NAMES), 17)),
                "local": local,
                "domain": domain,
                **{f"card{index}": part for index, part in enumerate(digits)},
            }
        )
        card = pl.concat_str([pl.col(f"card{index}").cast(pl.String).str.zfill(4) for index in range(4)], separator=" ")
        return made.select(
            pl.Series("id", _last_person(numbers) + FIRST_ID),
            pl.concat_str("first", "last", separator=" ").alias("name"),
            pl.format("{}@{}.com", pl.col("local").str.head(7), pl.col("domain").str.head(5)).alias("emailAddress"),
            card.alias("creditCard"),
            _pick(_CITIES, dice.below(len(_CITIES), 18)).alias("city"),
            _pick(_STATES, dice.below(len(_STATES), 19)).alias("state"),
            self._times(numbers).alias("dateTime"),
            dice.letters(96, 20).alias("extra"),
        )

    def _auctions(self, numbers: Numbers) -> pl.DataFrame:
        dice = Dice(self.seed, numbers)
        initial = _price(dice, 30)
        # As many events as it takes to make the auctions in flight, at the pace of this stream.
        ahead = -(-_AUCTIONS_IN_FLIGHT * WHOLE // AUCTION_PART)
        length = 1 + dice.below(max(2 * ahead * self.step_us // 1000, 1), 31)
        times = self._times(numbers)
        hot = dice.below(4, 32) > 0
        seller = np.where(hot, _last_person(numbers) // _HOT_STEP * _HOT_STEP, _some_person(dice, 33))
        return pl.DataFrame(
            {
                "id": _last_auction(numbers) + FIRST_ID,
                "itemName": dice.letters(16, 34),
                "description": dice.letters(64, 35),
                "initialBid": initial,
                "reserve": initial + _price(dice, 36),
                "dateTime": times,
                "expires": (times.cast(pl.Int64) + pl.Series(length * 1000)).cast(TIME),
                "seller": seller + FIRST_ID,
                "category": FIRST_CATEGORY + dice.below(5, 37),
                "extra": dice.letters(240, 38),
            }
        )

    def _bids(self, numbers: Numbers) -> pl.DataFrame:
        dice = Dice(self.seed, numbers)
        last = _last_auction(numbers)
        lowest = np.maximum(last - _AUCTIONS_IN_FLIGHT, 0)
        some = lowest + dice.below(last - lowest + 1 + _AUCTIONS_AHEAD, 50)
        auction = np.where(dice.below(2, 51) > 0, last // _HOT_STEP * _HOT_STEP, some)
        hot_bidder = _last_person(numbers) // _HOT_STEP * _HOT_STEP + 1
        bidder = np.where(dice.below(4, 52) > 0, hot_bidder, _some_person(dice, 53))
        hot_channel = dice.below(len(_HOT_CHANNELS), 54)
        channel = np.where(dice.below(2, 55) > 0, hot_channel, len(_HOT_CHANNELS) + dice.below(_CHANNELS, 56))
        where = self._channels[channel]
        return pl.DataFrame(
            {
                "auction": auction + FIRST_ID,
                "bidder": bidder + FIRST_ID,
                "price": _price(dice, 57),
                "channel": where["channel"],
                "url": where["url"],
                "dateTime": self._times(numbers),
                "extra": dice.letters(32, 58),
            }
        )

    def _times(self, numbers: Numbers) -> pl.Series:
        early = Dice(self.seed, numbers).below(self.disorder_us + 1, 1)
        return pl.Series(self.base_us + numbers * self.step_us - early).cast(TIME)


def _last_person(numbers: Numbers) -> Numbers:
    """The newest person there is at an event, the event's own included."""
    return numbers // WHOLE * PERSON_PART + np.minimum(numbers % WHOLE, PERSON_PART - 1)


def _last_auction(numbers: Numbers) -> Numbers:
    """The newest auction there is at an event, the event's own included; -1 before the first one."""
    within = np.clip(numbers % WHOLE - PERSON_PART, -1, AUCTION_PART - 1)
    return numbers // WHOLE * AUCTION_PART + within


def _some_person(dice: Dice, salt: int) -> Numbers:
    """One of the last thousand persons, or one that comes soon."""
    people = _last_person(dice.events) + 1
    active = np.minimum(people, _ACTIVE_PEOPLE)
    return people - active + dice.below(active + _PEOPLE_AHEAD, salt)


def _price(dice: Dice, salt: int) -> Numbers:
    return np.rint(np.power(10.0, dice.fraction(salt) * 6.0) * 100.0).astype(np.int64)


def _pick(texts: tuple[str, ...], which: Numbers) -> pl.Series:
    return pl.Series(texts)[which]


def _channels(seed: int) -> pl.DataFrame:
    """Channels and their addresses, the hot ones first."""
    names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))]
    dice = Dice(seed, np.arange(len(names), dtype=np.int64))
    parts = pl.DataFrame({f"part{index}": dice.letters(8, 70 + index).str.head(5) for index in range(3)})
    named = dice.below(10, 73) > 0
    named[: len(_HOT_CHANNELS)] = False
    return parts.select(
        pl.Series("channel", names),
        pl.format("https://www.nexmark.com/{}/{}/{}/item.htm?query=1", "part0", "part1", "part2")
        + pl.when(pl.Series(named))
        .then(pl.format("&channel_id={}", pl.Series(dice.below(1 << 31, 74))))
        .otherwise(pl.lit("")),
    ).rename({"part0": "url"})
