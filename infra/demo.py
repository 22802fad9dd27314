"""What the demo prints at its end: the audit, figures worth looking at, and what to try next."""

import sys

from rich.console import Console

from sluice import Project
from sluice.cli.look import print_audit
from sluice.cli.printing import print_table

figures = {
    "The flights of 2013, as their publishers count them (336,776 and 8,255 and 12.6 for the whole year)": """
        SELECT count(*) AS flights, count(*) - count(departed_at) AS never_departed,
            round(avg(departure_delay_minutes), 1) AS departure_delay_minutes_avg,
            count(weather) AS with_weather, count(aircraft) AS with_aircraft
        FROM silver.departures""",
    "gold.delays_by_weather: the weather as it was at the scheduled departure": """
        SELECT visibility[3:] AS visibility, wind[3:] AS wind, flights, cancelled,
            round(departure_delay_minutes_avg, 1) AS departure_delay_minutes_avg
        FROM gold.delays_by_weather
        WHERE visibility <> 'unknown' AND wind <> 'unknown' ORDER BY gold.delays_by_weather.visibility, 2""",
    "gold.delays_hourly: the hours in which most was lost": """
        SELECT origin, window_start AS hour_utc, flights, cancelled,
            round(departure_delay_minutes_avg, 1) AS departure_delay_minutes_avg
        FROM gold.delays_hourly WHERE departed >= 10 ORDER BY departure_delay_minutes_avg DESC LIMIT 5""",
    "silver._fates: what was set aside, and why": """
        SELECT dataset, fate, reason, count(*) AS records FROM silver._fates GROUP BY ALL ORDER BY 1, 2, 3""",
}

try_next = """
[bold]Try next[/bold]
  make ui                                 the tables, their flow and a dashboard in a browser
  .venv/bin/sluice status                 where every table stands
  .venv/bin/sluice query "SELECT * FROM gold.carrier_days ORDER BY departure_delay_minutes_avg DESC LIMIT 5"
  .venv/bin/sluice run                    again: nothing new, nothing committed
  echo '{"origin":"JFK","observed_at":"2013-01-02T14:00:00Z","visibility_miles":0.1,"wind_speed_mph":30}' \\
    | .venv/bin/sluice log append weather - && .venv/bin/sluice run
                                          a late observation: only the flights of its hour change
  .venv/bin/sluice explain gold.delays_by_weather "visibility=1 below 1 mile" "wind=3 20 mph and more"
                                          what the figure was, what it became, and because of which record
  .venv/bin/sluice quarantine show silver.flight_events
  .venv/bin/sluice check                  what is expected of each table, and a report to read
  .venv/bin/sluice init ../my_lakehouse   a project of your own
"""


def main() -> None:
    """Prints it all, from the tables as they are."""
    console = Console(highlight=False)
    project = Project()
    console.print("\n[bold]Audit: what became of every record[/bold]")
    audited = project.audit()
    print_audit(audited)
    for title, sql in figures.items():
        console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
        answer = project.query(sql)
        print_table(answer.columns, answer.rows)
    console.print(try_next, soft_wrap=True)
    if not audited.balanced:
        sys.exit(1)


if __name__ == "__main__":
    main()
