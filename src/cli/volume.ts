import type { MountJson, UsageJson, VolumeDetailJson, VolumeJson } from '#front/rest/schemas.ts';
import {
  isVolumeId,
  parseLabelChanges,
  parseLabels,
  parseRevision,
  parseSizeArgument,
  qualifiedName,
  type RevisionFlag,
  refPath,
  splitRef,
} from './arguments.ts';
import { collect, type StowageCommand } from './command.ts';
import { addDeletionCommands } from './deletion.ts';
import { runLongOperation } from './long-operation.ts';
import { invalid } from './problem.ts';
import { addReleaseCommand, useFields } from './release.ts';
import type { MakeAction, Session } from './session.ts';
import { age, date, escapeControls, labelList, size } from './text.ts';

const volumePath = (ref: string): string => `/v1/volumes/${refPath(ref)}`;
const whichVolume = 'store/name, name or id';

export function addVolumeCommands(program: StowageCommand, act: MakeAction): void {
  const volume = program
    .command('volume')
    .description('Create, show, change, delete and restore volumes.')
    .example('stowage volume create demo', 'a volume on the default store');
  addReadCommands(volume, act);
  addChangeCommands(volume, act);
  addDeletionCommands(volume, act);
  addReleaseCommand(volume, act);
}

function addReadCommands(volume: StowageCommand, act: MakeAction): void {
  volume
    .command('list')
    .alias('ls')
    .description('List volumes.')
    .option('--store <store>', 'only volumes of this store')
    .option('--label <key=value>', 'only volumes with this label (repeatable)', collect)
    .option('--contains <text>', 'only volumes whose name contains this text')
    .example('stowage volume list --store local --label team=blue', 'the blue team’s volumes on local')
    .example(
      'stowage volume list --quiet --label temporary=yes | xargs -r stowage volume delete',
      'delete all with a label',
    )
    .action(act(list));
  volume
    .command('show')
    .description('Show one volume: size, condition, labels, mounts, users and hosts.')
    .argument('<volume>', whichVolume)
    .example('stowage volume show local/demo', 'everything about a volume')
    .example('stowage volume show demo --json | jq -r .id', 'its id, for a script')
    .action(act(show));
  volume
    .command('usage')
    .description('Measure the usage of a volume.')
    .argument('<volume>', whichVolume)
    .example('stowage volume usage demo', 'number of bytes and files')
    .action(act(usage));
}

function addChangeCommands(volume: StowageCommand, act: MakeAction): void {
  volume
    .command('create')
    .description('Create a volume and print its name (with --quiet: its id).')
    .argument('<name>', 'name, or store/name')
    .option('--store <store>', 'store to create it on (default: the default store)')
    .option('--size <size>', 'capacity, e.g. 500M, 1G, 1.5T')
    .option('--enforce', 'enforce the size: writes beyond it fail (not every store supports this)')
    .option('--block', 'create a raw block device instead of a file system')
    .option('--label <key=value>', 'label of the volume (repeatable)', collect)
    .example('stowage volume create demo', 'on the default store')
    .example('stowage volume create db --store images --size 10G --label team=blue', 'with a size and a label')
    .example('id=$(stowage volume create scratch --quiet)', 'keep the id in a variable')
    .action(act(create));
  volume
    .command('expand')
    .description('Expand a volume, even while it is mounted. Volumes cannot shrink.')
    .argument('<volume>', whichVolume)
    .argument('<size>', 'the new size, e.g. 2G')
    .option('--if-revision <n>', 'only if the volume is still at this revision')
    .example('stowage volume expand demo 2G', 'expand demo to 2 GiB')
    .action(
      act((session, ref: string, to: string, options: RevisionFlag) =>
        changeVolume(
          session,
          ref,
          options,
          { method: 'POST', step: '/expand', body: { bytes: parseSizeArgument(to) } },
          'expanded',
        ),
      ),
    );
  volume
    .command('enforce')
    .description(
      'Enforce the size of a volume, permanently. If the volume is mounted, this takes effect at the next mount.',
    )
    .argument('<volume>', whichVolume)
    .option('--if-revision <n>', 'only if the volume is still at this revision')
    .example('stowage volume enforce nfs/demo', 'writes beyond its size fail')
    .action(
      act((session, ref: string, options: RevisionFlag) =>
        changeVolume(session, ref, options, { method: 'PATCH', step: '', body: { enforce: true } }, 'enforced'),
      ),
    );
  volume
    .command('rename')
    .description('Rename a volume; its id stays the same. Fails while the volume is in use.')
    .argument('<volume>', whichVolume)
    .argument('<new-name>', 'the new name, without a store')
    .option('--if-revision <n>', 'only if the volume is still at this revision')
    .example('stowage volume rename local/demo production', 'local/demo becomes local/production')
    .action(
      act((session, ref: string, name: string, options: RevisionFlag) =>
        changeVolume(session, ref, options, { method: 'POST', step: '/rename', body: { name } }, 'renamed'),
      ),
    );
  volume
    .command('label')
    .description('Set labels (key=value) or remove them (key-).')
    .argument('<volume>', whichVolume)
    .argument('<labels...>', 'key=value or key-')
    .option('--if-revision <n>', 'only if the volume is still at this revision')
    .example('stowage volume label demo team=blue stage-', 'set team, remove stage')
    .action(
      act((session, ref: string, words: string[], options: RevisionFlag) =>
        changeVolume(
          session,
          ref,
          options,
          { method: 'PATCH', step: '', body: { labels: parseLabelChanges(words) } },
          'labelled',
        ),
      ),
    );
}

interface VolumeListFlags {
  readonly store?: string;
  readonly label?: readonly string[];
  readonly contains?: string;
}

async function list(session: Session, options: VolumeListFlags): Promise<void> {
  parseLabels(options.label ?? []);
  const { items, unanswered, unreached } = await session.client.listOverStores<VolumeJson>('/v1/volumes', {
    ...options,
  });
  const nothing =
    Object.keys(options).length > 0
      ? 'no volume matches; see all with: stowage volume list'
      : 'no volumes; create one with: stowage volume create NAME';
  printVolumes(session, items, nothing);
  session.out.noteUnanswered(unanswered, 'its volumes are shown as last seen');
  session.out.noteUnreached(unreached, 'its node-local volumes are missing');
}

function printVolumes({ out, clock }: Session, volumes: readonly VolumeJson[], nothing: string): void {
  const hasNodes = volumes.some(({ node }) => node !== undefined);
  const row = (volume: VolumeJson): string[] => [
    `${volume.store}/${volume.name}`,
    ...(hasNodes ? [volume.node ?? '-'] : []),
    size(volume.bytes),
    volume.access,
    labelList(volume.labels),
    age(volume.createdAt, clock.now()),
  ];
  if (out.json) out.value(volumes);
  else if (out.quiet) volumes.forEach((volume) => void out.line(escapeControls(volume.id)));
  else if (volumes.length === 0) out.note(nothing);
  else out.table(['VOLUME', ...(hasNodes ? ['NODE'] : []), 'SIZE', 'ACCESS', 'LABELS', 'AGE'], volumes.map(row));
}

async function show({ client, out, clock }: Session, ref: string): Promise<void> {
  const volume = await client.get<VolumeDetailJson>(volumePath(ref));
  if (out.json) return out.value(volume);
  if (out.quiet) return out.line(escapeControls(volume.id));
  const enforced = volume.bytes === null ? '' : volume.enforced ? ' (enforced)' : ' (not enforced)';
  const condition = volume.detail === null ? volume.condition : `${volume.condition}: ${volume.detail}`;
  out.fields([
    ['volume', `${volume.store}/${volume.name}`],
    ['id', volume.id],
    ...(volume.node === undefined ? [] : [['node', volume.node] as const]),
    ['size', size(volume.bytes) + enforced],
    ['access', volume.access],
    ['condition', { text: condition, tone: volume.condition === 'ok' ? 'good' : 'bad' }],
    ...(typeof volume.path === 'string' ? [['path', `${volume.path}, in the store's directory`] as const] : []),
    ['labels', Object.entries(volume.labels).map(([key, value]) => `${key}=${value}`)],
    ['created', `${date(volume.createdAt)} (${age(volume.createdAt, clock.now())} ago)`],
    ['revision', String(volume.revision)],
    ['mounts', volume.mounts.map(mountText)],
    ['users', volume.users.map((user) => `${user.kind} ${user.name} on ${user.node}`)],
    ...useFields(volume.uses ?? null),
  ]);
  out.noteUnreached(volume.unreached ?? [], 'its mounts are missing');
}

const mountText = ({ target, readOnly, node }: MountJson): string =>
  `${target}${readOnly ? ' (read-only)' : ''}${node === undefined ? '' : ` on ${node}`}`;

async function usage({ client, out }: Session, ref: string): Promise<void> {
  const measured = await client.get<UsageJson>(`${volumePath(ref)}/usage`);
  if (out.json) return out.value(measured);
  const lowerBound = measured.complete ? '' : 'at least ';
  const files = measured.files === '1' ? '1 file' : `${measured.files} files`;
  out.reportDone(`${lowerBound}${size(measured.bytes)} in ${lowerBound}${files}`);
}

interface VolumeCreateFlags {
  readonly store?: string;
  readonly size?: string;
  readonly enforce?: boolean;
  readonly block?: boolean;
  readonly label?: readonly string[];
}

async function create(session: Session, what: string, options: VolumeCreateFlags): Promise<void> {
  const { client, out } = session;
  const given = splitRef(what);
  if (given.store !== undefined && options.store !== undefined && given.store !== options.store) {
    throw invalid(
      `two different stores: ${escapeControls(given.store)} and ${escapeControls(options.store)}`,
      'store-ambiguous',
      'Specify only one of them.',
    );
  }
  const store = given.store ?? options.store;
  const body = {
    name: given.name,
    ...(store === undefined ? {} : { store }),
    ...(options.size === undefined ? {} : { bytes: parseSizeArgument(options.size) }),
    ...(options.enforce === true ? { enforce: true } : {}),
    ...(options.block === true ? { access: 'block' } : {}),
    ...(options.label === undefined ? {} : { labels: parseLabels(options.label) }),
  };
  const made = await runLongOperation<VolumeJson>(session, { method: 'POST', path: '/v1/volumes', body });
  const volume = made ?? (await client.get<VolumeJson>(volumePath(what)));
  if (out.json) return out.value(volume);
  out.line(out.quiet ? escapeControls(volume.id) : qualifiedName(volume));
}

async function changeVolume(
  { client, out }: Session,
  ref: string,
  guard: RevisionFlag,
  change: { readonly method: 'POST' | 'PATCH'; readonly step: string; readonly body: unknown },
  done: string,
): Promise<void> {
  const { method, step, body } = change;
  const answer = await client.change({ method, path: volumePath(ref) + step, body, ifRevision: parseRevision(guard) });
  const volume = answer.body as VolumeJson;
  if (out.json) return out.value(volume);
  const was = isVolumeId(ref) || ref === volume.name || ref === `${volume.store}/${volume.name}` ? '' : ` (was ${ref})`;
  const suffix = { expanded: ` to ${size(volume.bytes)}`, enforced: `: at most ${size(volume.bytes)}` }[done] ?? was;
  out.reportDone(`${done} ${volume.store}/${volume.name}${suffix}`);
}
