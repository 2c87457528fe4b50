"""EB-ALFRED's fixed actions: 162 names, whose index is the `action_id` that a plan writes.

The order is the benchmark's own and part of its protocol. Ids from 162 up are a scene's own actions, such as "find a
Cabinet_2", and belong to a row, not to this table.
"""

from __future__ import annotations

from collections.abc import Sequence

_FIND = """
Cart Potato Faucet Ottoman CoffeeMachine Candle CD Pan Watch HandTowel SprayBottle BaseballBat CellPhone Kettle
Mug StoveBurner Bowl Toilet DiningTable Spoon TissueBox Shelf Apple TennisRacket SoapBar Cloth Plunger FloorLamp
ToiletPaperHanger CoffeeTable Spatula Plate Bed Glassbottle Knife Tomato ButterKnife Dresser Microwave
CounterTop GarbageCan WateringCan Vase ArmChair Safe KeyChain Pot Pen Cabinet Desk Newspaper Drawer Sofa Bread
Book Lettuce CreditCard AlarmClock ToiletPaper SideTable Fork Box Egg DeskLamp Ladle WineBottle Pencil Laptop
RemoteControl BasketBall DishSponge Cup SaltShaker PepperShaker Pillow Bathtub SoapBottle Statue Fridge Sink
"""
_PICK = """
KeyChain Potato Pot Pen Candle CD Pan Watch Newspaper HandTowel SprayBottle BaseballBat Bread CellPhone Book
Lettuce CreditCard Mug AlarmClock Kettle ToiletPaper Bowl Fork Box Egg Spoon TissueBox Apple TennisRacket Ladle
WineBottle Cloth Plunger SoapBar Pencil Laptop RemoteControl BasketBall DishSponge Cup Spatula SaltShaker Plate
PepperShaker Pillow Glassbottle SoapBottle Knife Statue Tomato ButterKnife WateringCan Vase
"""
_OPEN = "Safe Laptop Fridge Box Microwave Cabinet Drawer"
_TURN = "Microwave DeskLamp FloorLamp Faucet"
_SLICE = "Potato Lettuce Tomato Apple Bread"

PUT = "put down the object in hand"
DROP = "drop the object in hand"

ACTIONS: tuple[str, ...] = (
    *(f"find a {thing}" for thing in _FIND.split()),
    *(f"pick up the {thing}" for thing in _PICK.split()),
    PUT,
    DROP,
    *(f"{verb} the {thing}" for thing in _OPEN.split() for verb in ("open", "close")),
    *(f"turn {way} the {thing}" for thing in _TURN.split() for way in ("on", "off")),
    *(f"slice the {thing}" for thing in _SLICE.split()),
)
OBJECTS: tuple[str, ...] = tuple(_FIND.split())
OPENABLE = frozenset(_OPEN.split())
PORTABLE = frozenset(_PICK.split())


def fold_action(name: str) -> str:
    """A name as it is looked up: case and white space folded."""
    return " ".join(name.casefold().split())


_ID_OF = {fold_action(name): index for index, name in enumerate(ACTIONS)}
_OBJECT_OF = {name.casefold(): name for name in OBJECTS}
# Names that ALFRED and AI2-THOR have for a thing that the table calls otherwise.
_ALIASES = {
    "sinkbasin": "Sink",
    "bathtubbasin": "Bathtub",
    "toiletpaperroll": "ToiletPaper",
}


def action_name(action_id: int, own: Sequence[str] = ()) -> str | None:
    """The name of an action, or None if there is none with this id.

    Args:
        action_id: the id.
        own: the row's own names, from id 162 up.
    """
    if 0 <= action_id < len(ACTIONS):
        return ACTIONS[action_id]
    return own[action_id - len(ACTIONS)] if 0 <= action_id - len(ACTIONS) < len(own) else None


def action_id(name: str, own: Sequence[str] = ()) -> int | None:
    """The id of an action's name, case and white space aside, or None if there is no such action.

    Args:
        name: the name.
        own: the row's own names, from id 162 up.
    """
    folded = fold_action(name)
    if folded in _ID_OF:
        return _ID_OF[folded]
    return next((len(ACTIONS) + i for i, other in enumerate(own) if fold_action(other) == folded), None)


def object_name(name: str) -> str | None:
    """The table's spelling of an object's name in ALFRED ("sinkbasin", "garbagecan", "Apple_1a2b3c4d"), or None."""
    folded = name.split("|")[0].split("_")[0].casefold()
    return _ALIASES.get(folded) or _OBJECT_OF.get(folded)
