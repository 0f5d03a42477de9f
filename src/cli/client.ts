import type { DataPathJson, StatusJson } from '#front/rest/schemas.ts';
import type { StowageCommand } from './command.ts';
import type { MakeAction, Session } from './session.ts';
import type { Tone } from './table.ts';
import { plural } from './text.ts';

export function addClientCommands(program: StowageCommand, act: MakeAction): void {
  const client = program
    .command('client')
    .description('Show or replace the processes that serve the mounts of network stores.')
    .example('stowage client status', 'list the data paths');
  client
    .command('status')
    .description('Show the data path of each network: its state, its version, and how often it took over.')
    .example('stowage client status', 'state and version of each data path')
    .action(act(status));
  client
    .command('upgrade')
    .description(
      'Replace the data paths with those of the running version while mounts are in use. Applications see a short pause.',
    )
    .example('stowage client upgrade', 'after an upgrade and restart of Stowage')
    .action(act(upgrade));
}

const tones: Readonly<Record<DataPathJson['state'], Tone>> = {
  serving: 'good',
  idle: 'good',
  settling: 'warn',
  moving: 'warn',
  'taking over': 'warn',
  failing: 'bad',
  'not answering': 'bad',
};

function printDataPaths({ out }: Session, all: readonly DataPathJson[]): void {
  const hasNodes = all.some(({ node }) => node !== undefined);
  out.table(
    [...(hasNodes ? ['NODE'] : []), 'NETWORK', 'STATE', 'MOUNTS', 'VERSION', 'PID', 'STANDBY', 'TAKEOVERS', 'REPORT'],
    all.map((one) => [
      ...(hasNodes ? [one.node ?? '-'] : []),
      one.name,
      { text: one.state, tone: tones[one.state] },
      String(one.mounts),
      one.version ?? '-',
      one.pid === null ? '-' : String(one.pid),
      one.standby ? 'ready' : 'starting',
      String(one.takeovers),
      one.report || '-',
    ]),
  );
}

async function status(session: Session): Promise<void> {
  const { client, out } = session;
  const { items, unreached } = await client.listOverStores<DataPathJson>('/v1/client');
  out.noteUnreached(unreached, 'its data paths are missing');
  if (out.json) return out.value(items);
  if (out.quiet) return items.forEach((one) => void out.line(one.name));
  if (items.length === 0) return out.note('no data path is running: the first mount of a network store starts one');
  printDataPaths(session, items);
  const { version } = await client.get<StatusJson>('/v1/status');
  if (session.services.cluster === undefined && items.some((one) => one.version !== null && one.version !== version))
    out.note(
      `some data paths run another version than this server (${version}); replace them with: stowage client upgrade`,
    );
}

async function upgrade(session: Session): Promise<void> {
  const { client, out } = session;
  const answer = await client.change({ method: 'POST', path: '/v1/client/upgrade' });
  const { items } = answer.body as { readonly items: readonly DataPathJson[] };
  if (out.json) return out.value(items);
  out.reportDone(
    items.length === 0
      ? 'no data path is running: nothing to replace'
      : `replaced ${plural(items.length, 'data path')}`,
  );
  if (!out.quiet && items.length > 0) printDataPaths(session, items);
}
