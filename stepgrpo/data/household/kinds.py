"""The kinds of things a household has, and what each can be used for.

Kinds carry AI2-THOR's names, as in ALFRED. A second thing of a kind is called `Mug_2`.
"""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


PORTABLE = words(
    "AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth CreditCard "
    "Cup DishSponge Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan "
    "Pen Pencil PepperShaker Pillow Plate Plunger Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula "
    "Spoon SprayBottle Statue TennisRacket TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle"
)

FIXED = words(
    "ArmChair Bathtub Bed Cabinet Cart CoffeeMachine CoffeeTable CounterTop Desk DeskLamp DiningTable Drawer "
    "Dresser Faucet FloorLamp Fridge GarbageCan Microwave Ottoman Safe Shelf SideTable Sink Sofa StoveBurner "
    "Toilet ToiletPaperHanger"
)

LAMPS = ("DeskLamp", "FloorLamp")
SWITCHED = ("DeskLamp", "Faucet", "FloorLamp", "Microwave")
OPENABLE = ("Box", "Cabinet", "Drawer", "Fridge", "Laptop", "Microwave", "Safe")
SLICEABLE = ("Apple", "Bread", "Lettuce", "Potato", "Tomato")
KNIVES = ("ButterKnife", "Knife")
MOVABLE_RECEPTACLES = ("Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot")
RECEPTACLES = tuple(kind for kind in FIXED if kind not in (*LAMPS, "Faucet"))

# Too large to come in pairs.
SINGLE = ("BaseballBat", "BasketBall", "Box", "Laptop", "Plunger", "TennisRacket", "WateringCan")
PAIRED = tuple(kind for kind in PORTABLE if kind not in SINGLE)

FLOOR = "Floor"

# Per room its places and its things.
ROOMS = {
    "kitchen": (
        words(
            "CounterTop DiningTable Fridge Microwave Cabinet Drawer Sink StoveBurner CoffeeMachine GarbageCan "
            "Shelf SideTable"
        ),
        words(
            "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Glassbottle Kettle Knife Ladle Lettuce Mug Pan "
            "PepperShaker Plate Pot Potato SaltShaker Spatula Spoon Tomato WineBottle"
        ),
    ),
    "living room": (
        words(
            "ArmChair Bed Cabinet Cart CoffeeTable Desk DeskLamp Drawer Dresser FloorLamp Ottoman Safe Shelf "
            "SideTable Sofa"
        ),
        words(
            "AlarmClock BaseballBat BasketBall Book Bowl Box CD CellPhone CreditCard KeyChain Laptop Mug "
            "Newspaper Pen Pencil Pillow RemoteControl Statue TennisRacket Vase Watch WateringCan"
        ),
    ),
    "bathroom": (
        words("Bathtub Cabinet CounterTop Drawer GarbageCan Shelf Sink Toilet ToiletPaperHanger"),
        words("Candle Cloth HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper"),
    ),
}


def kind_of(thing: str) -> str:
    """The kind of a thing: `Mug` for `Mug` and for `Mug_2`."""
    return thing.partition("_")[0]
