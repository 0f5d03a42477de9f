import type { OperationJson } from '#front/rest/schemas.ts';
import { parseNumberArgument, pathSegment } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import { followEvents, operationOf } from './events.ts';
import type { MakeAction, Session } from './session.ts';
import type { Cell, Tone } from './table.ts';
import { age, date, escapeControls } from './text.ts';

/** The server's page limit. */
const maxListedOperations = 1000;

const operationPath = (id: string): string => `/v1/operations/${pathSegment('operation', id, 'operation-reference')}`;

export function addOperationCommands(program: StowageCommand, act: MakeAction): void {
  const operations = program
    .command('operations')
    .alias('ops')
    .description('List, show and cancel operations of the server.')
    .example('stowage operations', 'the 20 most recent operations')
    .example('stowage operations --watch', 'then print operations as they start and end');
  operations
    .command('list', { isDefault: true })
    .alias('ls')
    .description('List running and recent operations, the newest first.')
    .option('--limit <n>', `maximum number of operations, up to ${maxListedOperations}`, '20')
    .option('--watch', 'then print operations as they start and end')
    .example('stowage operations list --limit 100', 'the 100 most recent operations')
    .example('stowage operations --watch', 'until Ctrl-C')
    .action(act(list));
  operations
    .command('show')
    .description('Show one operation: its progress, its result, and its error.')
    .argument('<operation>', 'its id')
    .example('stowage operations show op1-…', 'progress, result and error of an operation')
    .action(act(show));
  operations
    .command('cancel')
    .description('Cancel a running operation. Partial work is rolled back or can be repeated.')
    .argument('<operation>', 'its id')
    .example('stowage operations cancel op1-…', 'cancel the operation')
    .action(
      act(async ({ client, out }, id: string) => {
        const { body } = await client.change({ method: 'POST', path: `${operationPath(id)}/cancel` });
        if (out.json && body !== undefined) return out.value(body);
        const { state } = body as OperationJson;
        out.reportDone(state === 'running' ? `${id} is being cancelled` : `${id} had already ended: ${state}`);
      }),
    );
}

const tones: Readonly<Record<string, Tone>> = { running: 'warn', done: 'good', failed: 'bad', canceled: 'faint' };
const stateCell = (operation: OperationJson): Cell => ({
  text: operation.state,
  tone: tones[operation.state] ?? 'plain',
});

function progressText({ progress, error }: OperationJson): string {
  if (error !== null) return error.message;
  if (progress === null) return '';
  return `${progress.done}${progress.total === null ? '' : `/${progress.total}`} ${progress.unit}`;
}

async function list(session: Session, options: { readonly limit: string; readonly watch?: boolean }): Promise<void> {
  const { client, out, clock } = session;
  const limit = parseNumberArgument('--limit', options.limit, { from: 1, to: maxListedOperations });
  // One page: the limit is the total.
  const { items } = await client.get<{ items: OperationJson[] }>('/v1/operations', { limit: String(limit) });
  if (options.watch === true) return await watch(session, items);
  if (out.json) return out.value(items);
  if (out.quiet) return items.forEach((operation) => void out.line(escapeControls(operation.id)));
  if (items.length === 0) return out.note('no operations yet');
  out.table(
    ['ID', 'KIND', 'SUBJECT', 'STATE', 'STARTED', 'DETAIL'],
    items.map((one) => [
      one.id,
      one.kind,
      one.subject,
      stateCell(one),
      `${age(one.startedAt, clock.now())} ago`,
      progressText(one),
    ]),
  );
}

async function show({ client, out }: Session, id: string): Promise<void> {
  const operation = await client.get<OperationJson>(operationPath(id));
  if (out.json) return out.value(operation);
  if (out.quiet) return out.line(escapeControls(operation.id));
  const { error } = operation;
  out.fields([
    ['id', operation.id],
    ['kind', operation.kind],
    ['subject', operation.subject],
    ['store', operation.store ?? '-'],
    ['state', stateCell(operation)],
    ['started', date(operation.startedAt)],
    ['ended', operation.endedAt === null ? '-' : date(operation.endedAt)],
    ...(operation.progress === null ? [] : [['progress', progressText({ ...operation, error: null })] as const]),
    ...(error === null ? [] : [['error', error.message] as const, ['action', error.action] as const]),
  ]);
}

async function watch(session: Session, recent: readonly OperationJson[]): Promise<void> {
  const { out } = session;
  const operationLine = (operation: OperationJson): string => {
    if (out.quiet) return escapeControls(operation.id);
    const at = date(operation.endedAt ?? operation.startedAt).slice(11, 16);
    const word = out.paint(tones[operation.state] ?? 'plain', operation.state.padEnd(8));
    const why = operation.error === null ? '' : `: ${operation.error.message}`;
    return `${at}  ${word}  ${escapeControls(`${operation.kind} ${operation.subject}${why}`)}  ${escapeControls(operation.id)}`;
  };
  const printOperation = (operation: OperationJson): void =>
    out.json ? out.event(operation) : out.line(operationLine(operation));
  [...recent].reverse().forEach(printOperation);
  await followEvents(session, (event) => {
    const operation = operationOf(event);
    if (operation !== undefined && event.type !== 'operation.progress') printOperation(operation);
  });
}
