import { StowageError } from '#core/errors.ts';
import type { EventJson, OperationJson } from '#front/rest/schemas.ts';
import type { StowageCommand } from './command.ts';
import type { MakeAction, Session } from './session.ts';
import type { ServerEvent } from './sse.ts';
import { escapeControls } from './text.ts';

/** Longer than a restart takes. After this time without a server, the command fails. */
const maxRestartMs = 10_000;

export function addEventCommands(program: StowageCommand, act: MakeAction): void {
  program
    .command('events')
    .description('Stream changes of volumes, stores, mounts and operations until Ctrl-C.')
    .example('stowage events', 'one line for each change')
    .example('stowage events --json | jq -c "select(.type == \\"volume.created\\")"', 'one JSON object per line')
    .action(
      act((session) =>
        followEvents(session, (event) => {
          const { out } = session;
          if (out.json) return out.event(event);
          if (out.quiet) return out.line(escapeControls(event.subject));
          out.line(
            `${escapeControls(event.at)}  ${escapeControls(event.type.padEnd(20))}  ${escapeControls(subjectText(event))}`,
          );
        }),
      ),
    );
}

/** The name instead of the id, where the event has it. */
function subjectText(event: EventJson): string {
  const operation = operationOf(event);
  if (operation !== undefined) return `${operation.kind} ${operation.subject}: ${operation.state}`;
  const { store, name } = (event.data ?? {}) as { readonly store?: unknown; readonly name?: unknown };
  return typeof store === 'string' && typeof name === 'string' ? `${store}/${name}` : event.subject;
}

/** Calls back for each event until Ctrl-C or until the output is closed. Reconnects after a restart of the server. */
export async function followEvents(session: Session, onEvent: (event: EventJson) => void): Promise<void> {
  const { client, clock, io, out } = session;
  const stopSignal = AbortSignal.any([io.signal, session.outputClosed]);
  let lastEventId: string | undefined;
  let disconnectedAt: number | undefined;
  let wasConnected = false;
  while (!stopSignal.aborted) {
    try {
      for await (const event of client.events(lastEventId, stopSignal)) {
        disconnectedAt = undefined;
        wasConnected = true;
        lastEventId = event.id ?? lastEventId;
        if (event.type === 'reset') out.warn('some events were missed');
        else if (event.type !== 'hello') onEvent(eventOf(event, clock.now()));
        if (stopSignal.aborted) break;
      }
      wasConnected = true;
    } catch (thrown) {
      if (stopSignal.aborted) break;
      const restarting =
        thrown instanceof StowageError && thrown.code === 'unavailable' && (wasConnected || isBroken(thrown));
      if (!restarting || clock.now() - (disconnectedAt ?? clock.now()) > maxRestartMs) throw thrown;
      wasConnected = true;
    }
    disconnectedAt ??= clock.now();
    await clock.sleep(250, stopSignal).catch(() => undefined);
  }
  // A closed output is a success. Ctrl-C gives the exit status of an interrupted program, without a message.
  if (session.outputClosed.aborted) return;
  throw new StowageError('interrupted', {
    code: 'canceled',
    reason: 'interrupted',
    action: '',
    cause: stopSignal.reason,
  });
}

const isBroken = (thrown: StowageError): boolean => thrown.reason === 'connection-broken';

function eventOf(event: ServerEvent, now: number): EventJson {
  const data = parse(event.data);
  const {
    type,
    at,
    subject,
    data: inner,
  } = typeof data === 'object' && data !== null ? (data as Partial<EventJson>) : {};
  if (typeof type === 'string' && typeof at === 'string') return { type, at, subject: subject ?? '', data: inner };
  return {
    type: event.type,
    at: new Date(now).toISOString(),
    subject: typeof subject === 'string' ? subject : '',
    data,
  };
}

export function operationOf(event: EventJson): OperationJson | undefined {
  if (!event.type.startsWith('operation.')) return undefined;
  return typeof event.data === 'object' && event.data !== null ? (event.data as OperationJson) : undefined;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
