"""Seats of flights: no seat is sold twice, whoever asks at the same time, and whatever is killed meanwhile."""

from sluice import bronze, gold, silver

topic = bronze.topic("seat_decisions", meaning="What was decided of each command, in order.")
decisions = silver.events(
    "seat_decisions",
    source=topic,
    schema="""
        command_id string, command string, outcome string, version bigint, event string, expected_version bigint,
        reason string, message string, decided_at timestamp,
        flight string, seats int, seat string, passenger string
    """,
    keys=["command_id"],
    event_time="decided_at",
    meaning="Each command with what became of it.",
)
events = silver.join(
    "seat_events",
    inputs={"decisions": decisions},
    shape="""
        SELECT command_id, flight, version, event, decided_at, seats, seat, passenger
        FROM decisions WHERE outcome = 'accepted'
    """,
    meaning="What happened: the commands that were accepted.",
)
rejections = silver.join(
    "seat_rejections",
    inputs={"decisions": decisions},
    shape="""
        SELECT command_id, flight, command, reason, message, decided_at
        FROM decisions WHERE outcome = 'rejected'
    """,
    meaning="What was asked and refused, and why.",
)
flights = gold.state(
    "flights",
    source=decisions,
    where="outcome = 'accepted'",
    keys=["flight"],
    sequence_by="version",
    schema="seats int, sold array<string>, version bigint, is_gapless boolean, is_sold_once boolean",
    initial={
        "seats": "NULL",
        "sold": "array()",
        "version": "0",
        "is_gapless": "true",
        "is_sold_once": "true",
    },
    reduce={
        "seats": "coalesce(event.seats, state.seats)",
        "sold": """
            CASE event.event
                WHEN 'seat_sold' THEN array_append(state.sold, event.seat)
                WHEN 'seat_returned' THEN array_remove(state.sold, event.seat)
                ELSE state.sold
            END
        """,
        "version": "event.version",
        "is_gapless": "state.is_gapless AND event.version = state.version + 1",
        "is_sold_once": """
            state.is_sold_once AND NOT (event.event = 'seat_sold' AND array_contains(state.sold, event.seat))
        """,
    },
    meaning="Each flight with the seats that are sold now.",
)
passengers = gold.aggregate(
    "tickets_by_passenger",
    source=events,
    group_by=["passenger"],
    measures={"tickets": "count(*)"},
    where="event = 'seat_sold'",
    meaning="How many tickets each passenger has bought.",
)
seats = gold.commands(
    "seats",
    topic=topic,
    state=flights,
    commands={
        "open_flight": gold.command(
            "flight string, seats int",
            rules={
                "flight_is_new": ("state.seats IS NULL", "This flight is open already."),
                "has_seats": ("command.seats BETWEEN 1 AND 1000", "A flight has 1 to 1,000 seats."),
            },
            event="flight_opened",
        ),
        "sell_seat": gold.command(
            "flight string, seat string, passenger string",
            rules={
                "flight_is_open": ("state.seats IS NOT NULL", "There is no such flight."),
                "seat_is_free": ("NOT array_contains(state.sold, command.seat)", "This seat is sold."),
                "seats_are_left": ("size(state.sold) < state.seats", "All seats are sold."),
            },
            event="seat_sold",
        ),
        "return_seat": gold.command(
            "flight string, seat string",
            rules={"seat_is_sold": ("array_contains(state.sold, command.seat)", "This seat is not sold.")},
            event="seat_returned",
        ),
    },
)
