import { StowageError } from '#core/errors.ts';
import type { FindingJson, StatusJson } from '#front/rest/schemas.ts';
import type { StowageCommand } from './command.ts';
import type { MakeAction, Session } from './session.ts';
import type { Cell, Tone } from './table.ts';
import { age, escapeControls, plural, size } from './text.ts';

export function addStatusCommands(program: StowageCommand, act: MakeAction): void {
  program
    .command('status')
    .description('Show the server: addresses, default store, and the number of stores, volumes and mounts.')
    .example('stowage status', 'is the server running, and where does it listen?')
    .example('stowage status --json | jq -r .defaultStore', 'one value, for a script')
    .action(act((session) => showStatus(session)));
  program
    .command('doctor')
    .description(
      'Check this machine: kernel features, mount propagation, FUSE, container engines, tools, AppArmor and SELinux.\n' +
        'The server runs the checks; without a server, this program does. Exits with 1 if something is missing.',
    )
    .example('stowage doctor', 'what works on this host, what does not, and how to fix it')
    .example(`stowage doctor --json | jq '.[] | select(.ok == "no")'`, 'only what is missing')
    .action(act((session) => diagnose(session)));
}

async function showStatus({ client, out, clock }: Session): Promise<void> {
  const status = await client.get<StatusJson>('/v1/status');
  if (out.json) return out.value(status);
  if (out.quiet) return;
  const { mounting, pid, state } = status;
  out.fields([
    [
      'server',
      `stowage ${status.version}${pid === null ? '' : `, pid ${pid}`}, up ${age(status.startedAt, clock.now())}`,
    ],
    ['state', status.ready ? { text: 'ready', tone: 'good' } : { text: 'starting', tone: 'warn' }],
    ['node', status.node],
    ['instance', status.instance],
    ...(status.agents === undefined
      ? [['listens on', status.listen] as const]
      : [['nodes', agentTexts(status.agents)] as const]),
    // Null for tokens that may not see it.
    ...(state === null
      ? []
      : ([
          ['state folder', state],
          ['configuration', status.config ?? 'none (defaults)'],
        ] as const)),
    // Both only exist on a machine.
    ...(status.agents === undefined
      ? [['default store', status.defaultStore ?? 'none'] as const, ['mounting', mountingCell(mounting)] as const]
      : []),
    // A server of an earlier version does not say.
    ...((status.plugins ?? []).length === 0 ? [] : [['plugins', status.plugins] as const]),
    ...((status.engines ?? []).length === 0 ? [] : [['engines', status.engines.map(engineText)] as const]),
    [
      'contains',
      `${plural(status.stores, 'store')}, ${plural(status.volumes, 'volume')}${status.agents === undefined ? `, ${plural(status.mounts, 'mount')}` : ', not counting node-local volumes'}`,
    ],
    // A server of an earlier version does not say.
    ...((status.storesInTrouble ?? []).length === 0
      ? []
      : [
          [
            'unhealthy',
            { text: `${status.storesInTrouble.join(', ')}; see: stowage store list`, tone: 'bad' },
          ] as const,
        ]),
    ['running now', plural(status.operations, 'operation')],
    ['memory', size(String(status.rssBytes))],
  ]);
}

const mountingCell = ({ able, why, action }: StatusJson['mounting']): Cell | readonly Cell[] =>
  able
    ? { text: 'possible', tone: 'good' }
    : [{ text: `not possible: ${why ?? 'unknown'}`, tone: 'warn' }, action ?? ''];

function agentTexts(agents: NonNullable<StatusJson['agents']>): readonly Cell[] {
  const absent = agents.filter(({ connected }) => !connected).map(({ node }) => node);
  const all: Cell = {
    text: `${agents.length - absent.length} of ${agents.length} have a connected agent`,
    tone: absent.length === 0 ? 'good' : 'bad',
  };
  return absent.length === 0 ? [all] : [all, `not connected: ${absent.join(', ')}`];
}

const engineText = ({ kind, socket, reachable }: StatusJson['engines'][number]): Cell =>
  reachable
    ? { text: `${kind} at ${socket}`, tone: 'plain' }
    : { text: `${kind} at ${socket} does not respond`, tone: 'bad' };

async function diagnose(session: Session): Promise<number> {
  const { out } = session;
  const findings = await loadFindings(session);
  if (out.json) out.value(findings);
  else for (const finding of findings) for (const line of findingLines(finding, session)) out.line(line);
  return findings.some((finding) => finding.ok === 'no') ? 1 : 0;
}

async function loadFindings({ client, out, services }: Session): Promise<readonly FindingJson[]> {
  try {
    const { items, unreached } = await client.listOverStores<FindingJson>('/v1/doctor');
    out.noteUnreached(unreached, 'its findings are missing');
    return items;
  } catch (thrown) {
    if (!(thrown instanceof StowageError && thrown.reason === 'server-not-running')) throw thrown;
    out.note(`${thrown.message}; checking this host without a server`);
    return await services.doctor();
  }
}

const verdicts: Readonly<Record<string, readonly [string, Tone]>> = {
  yes: ['ok', 'good'],
  warn: ['warn', 'warn'],
  no: ['missing', 'bad'],
};

function* findingLines(finding: FindingJson, { out }: Session): Generator<string> {
  const [word, tone] = verdicts[finding.ok] ?? [finding.ok, 'plain'];
  if (out.quiet && finding.ok === 'yes') return;
  const where = finding.node === undefined ? '' : `${escapeControls(finding.node)}: `;
  yield `${out.paint(tone, escapeControls(word).padEnd(8))} ${where}${escapeControls(finding.check)}: ${escapeControls(finding.detail)}`;
  if (finding.fix !== null && finding.ok !== 'yes') yield `         fix: ${escapeControls(finding.fix)}`;
}
