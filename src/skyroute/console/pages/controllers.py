"""Controllers: which one leads; master, epochs and sync state set of each broker group; and elections."""

from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.console.access.sessions import Visitor
from skyroute.console.errors import ConsoleError
from skyroute.console.texts import translatable, translator
from skyroute.console.web.actions import Done, Fields, action, done
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError
from skyroute.wire.calls.controller_responses import ControllerFields, ReplicaFields, ReplicaGroup

PAGE = "/cluster/controllers"
NO_CONTROLLERS = translatable("This console has no controllers. Start it with --controller HOST:PORT.")


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A broker group in controller mode."""

    cluster: str
    name: str
    group: ReplicaGroup

    def may_elect(self, replica: ReplicaFields) -> bool:
        """Return whether a replica can become master: alive, in sync, and not master yet."""
        return replica.is_alive and replica.is_in_sync and replica.broker_id != self.group.master.broker_id


async def controllers(request: Request) -> Response:
    """Show the leading controller and the broker groups that it knows."""
    context = context_of(request)
    addresses = context.config.controllers
    if addresses is None:
        return error_page(
            request, translator(request.state.visitor.language)(NO_CONTROLLERS), HTTPStatus.NOT_FOUND, "/cluster"
        )
    wanted = request.query_params.get("q", "").strip().lower()
    clusters = {
        broker.name: broker.cluster for broker in context.monitor.snapshot.brokers if wanted in broker.name.lower()
    }
    names = sorted(clusters)
    paging = Paging(len(names), page_number(request))
    known: ControllerFields | None = None
    rows: list[GroupRow] = []
    failure = ""
    try:
        known = await context.admin.controllers(addresses)
        shown = names[paging.start : paging.stop]
        found = await context.admin.replicas(addresses, shown) if shown else {}
        rows = [GroupRow(clusters.get(name, ""), name, group) for name, group in found.items()]
    except SkyrouteError as error:
        failure = str(error)
    return context.render(request, "cluster_controllers.html", known=known, rows=rows, failure=failure, paging=paging)


@action(
    "/cluster/controllers/elect",
    "controller.elect_master",
    question=translatable("Make broker {id} the master of {name}?"),
    warning=translatable(
        "Sends to this group fail until the new master has registered, usually for less than a second. The old "
        "master becomes a slave of the new one."
    ),
)
async def elect(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Make a replica the master of its group."""
    name, broker_id = fields.get("name", ""), fields.get("id", "")
    if context.config.controllers is None:
        raise ConsoleError(NO_CONTROLLERS)
    if not (broker_id.isascii() and broker_id.isdigit()):
        raise ConsoleError(f"broker id {broker_id!r} is not a number")
    master = await context.admin.elect_master(
        context.config.controllers, fields.get("cluster", ""), name, int(broker_id)
    )
    await context.monitor.refresh_snapshot()
    return done(
        "Broker {id} is the master of {name} since epoch {epoch}",
        PAGE,
        id=master.broker_id,
        name=name,
        epoch=master.master_epoch,
    )


ROUTES = [Route(PAGE, controllers), elect]
