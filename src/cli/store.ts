import type { AdoptionJson, OrphanJson, StoreCheckJson, StoreJson } from '#front/rest/schemas.ts';
import { pathSegment } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import { runLongOperation } from './long-operation.ts';
import type { MakeAction, Session } from './session.ts';
import { escapeControls, plural, size } from './text.ts';

const storePath = (name: string): string => `/v1/stores/${pathSegment('store', name, 'store-reference')}`;

export function addStoreCommands(program: StowageCommand, act: MakeAction): void {
  const store = program
    .command('store')
    .description('Manage stores, the named storage backends of volumes.')
    .example('stowage store list', 'list the stores');
  addReadCommands(store, act);
  addChangeCommands(store, act);
}

function addReadCommands(store: StowageCommand, act: MakeAction): void {
  store
    .command('list')
    .alias('ls')
    .description('List the stores.')
    .example('stowage store list', 'all stores, with the default store marked')
    .example('stowage store list --quiet', 'print only the names')
    .action(act(list));
  store
    .command('show')
    .description('Show one store with its policy and limits.')
    .argument('<store>', 'name of the store')
    .example('stowage store show local', 'everything about the store local')
    .action(act(show));
  store
    .command('check')
    .description('Check a store: reachable, writable, free space. Exits with 1 if a step fails.')
    .argument('<store>', 'name of the store')
    .option(
      '--from <network>',
      'check from another network: that of a container (running or not), a Docker or Podman network, or netns:NAME; in a cluster: pod:NAMESPACE/NAME',
    )
    .example('stowage store check local', 'does the store work, and how to fix it?')
    .example('stowage store check silver --from web', 'can the container web reach the server of silver?')
    .example('stowage store check silver --from docker:backend', 'can containers in the network backend reach it?')
    .example(
      'kubectl stowage store check silver --account checker --from pod:shop/web-0',
      'can the pod web-0 reach it? (in a cluster)',
    )
    .action(act(check));
  store
    .command('orphans')
    .description('List data on a store that belongs to no volume, and incomplete volumes.')
    .argument('<store>', 'name of the store')
    .example('stowage store orphans local', 'orphaned data, and what to do with it')
    .action(act(orphans));
}

function addChangeCommands(store: StowageCommand, act: MakeAction): void {
  store
    .command('add')
    .description('Add a store. Options of the store are query parameters of its URI.')
    .argument('<name>', 'name for the store')
    .argument('<uri>', 'URI of the store, e.g. local:///srv/data?layout=image')
    .option('--default', 'make it the default store')
    .example('stowage store add data local:///srv/data', 'directories under /srv/data')
    .example(
      "stowage store add images 'local:///srv/images?layout=image&onDelete=archive'",
      'enforced sizes, and a trash',
    )
    .action(act(add));
  store
    .command('adopt')
    .description(
      'Rebuild the list of volumes from the records on the store, and turn existing directories into volumes without copying.',
    )
    .argument('<store>', 'name of the store')
    .argument('[names...]', 'volumes or directories to adopt (default: all)')
    .option('--dry-run', 'only print what would be adopted')
    .option('--records-only', 'adopt only data with a record; ignore other directories')
    .example('stowage store adopt data --dry-run', 'what would become a volume?')
    .example('stowage store adopt data photos', 'adopt one directory')
    .example('stowage store adopt data', 'adopt all of them')
    .action(act(adopt));
  store
    .command('default')
    .description('Make a store the default for volumes that are created without --store.')
    .argument('<store>', 'name of the store')
    .example('stowage store default data', 'create new volumes on the store data by default')
    .action(
      act(async ({ client, out }, name: string) => {
        const { body } = await client.change({ method: 'POST', path: `${storePath(name)}/default` });
        if (out.json) return out.value(body);
        out.reportDone(`${name} is now the default store`);
      }),
    );
  store
    .command('remove')
    .alias('rm')
    .description(
      'Remove a store that was added with stowage store add. Its volumes are not deleted, and can be adopted again.',
    )
    .argument('<store>', 'name of the store')
    .example('stowage store remove data', 'remove the store data, but delete nothing on it')
    .action(
      act(async ({ client, out }, name: string) => {
        await client.change({ method: 'DELETE', path: storePath(name) });
        out.reportDone(`removed store ${name}; its volumes were not deleted`);
      }),
    );
}

async function list({ client, out }: Session): Promise<void> {
  const { items: stores, unreached } = await client.listOverStores<StoreJson>('/v1/stores');
  out.noteUnreached(unreached, 'its node-local stores are missing');
  if (out.json) return out.value(stores);
  if (out.quiet) return stores.forEach((store) => void out.line(escapeControls(store.name)));
  if (stores.length === 0) return out.note('no stores; add one with: stowage store add NAME URI');
  const hasNodes = stores.some(({ nodes }) => nodes !== undefined);
  const hasNetworks = stores.some(({ network }) => network !== null);
  out.table(
    [
      'NAME',
      'DEFAULT',
      'KIND',
      'STATE',
      ...(hasNodes ? ['NODES'] : []),
      'VOLUMES',
      'SIZE',
      'FREE',
      'ON DELETE',
      ...(hasNetworks ? ['NETWORK'] : []),
      'URI',
    ],
    stores.map((store) => [
      store.name,
      store.default ? 'yes' : '',
      store.kind,
      store.state === 'open' && store.problem !== null
        ? { text: 'open, unhealthy', tone: 'bad' }
        : { text: stateOf(store), tone: store.state === 'open' ? 'good' : 'bad' },
      ...(hasNodes ? [store.nodes === undefined ? 'all' : String(store.nodes.length)] : []),
      String(store.volumes),
      size(store.bytes),
      size(store.freeBytes),
      store.readOnly ? 'read-only' : store.onDelete,
      ...(hasNetworks ? [store.network ?? ''] : []),
      store.uri,
    ]),
  );
}

const stateOf = ({ state }: StoreJson): string => state.replace('-', ' ');

const nodeText = ({ node, state, volumes, bytes }: NonNullable<StoreJson['nodes']>[number]): string =>
  `${node}: ${state.replace('-', ' ')}, ${plural(volumes, 'volume')}, ${size(bytes)}`;

const origins: Readonly<Record<string, string>> = {
  file: 'the configuration file',
  api: 'stowage store add',
  builtin: 'the defaults',
  cluster: 'a Store object of Kubernetes',
};

async function show({ client, out }: Session, name: string): Promise<void> {
  const store = await client.get<StoreJson>(storePath(name));
  if (out.json) return out.value(store);
  if (out.quiet) return out.line(escapeControls(store.name));
  const enforced = store.enforcesCapacity === null ? 'unknown' : store.enforcesCapacity ? 'yes' : 'no';
  out.fields([
    ['name', store.name + (store.default ? ' (default)' : '')],
    ['uri', store.uri],
    ['kind', store.kind],
    ['origin', origins[store.origin] ?? store.origin],
    [
      'state',
      store.problem === null
        ? { text: stateOf(store), tone: 'good' }
        : [{ text: `${stateOf(store)}: ${store.problem.message}`, tone: 'bad' }, `action: ${store.problem.action}`],
    ],
    ...(store.nodes === undefined ? [] : [['nodes', store.nodes.map(nodeText)] as const]),
    ...(store.pending === null ? [] : [['pending', { text: store.pending, tone: 'bad' }] as const]),
    ...(store.network === null ? [] : [['network', store.network] as const]),
    ['read-only', store.readOnly ? 'yes' : 'no'],
    ['enforces sizes', enforced],
    ['access', store.access.join(', ')],
    ['on delete', store.onDelete === 'archive' ? `archive, kept for ${store.retention}` : store.onDelete],
    ['volumes', `${store.volumes}${store.maxVolumes === null ? '' : ` of at most ${store.maxVolumes}`}`],
    ['total size', `${size(store.bytes)}${store.maxBytes === null ? '' : ` of at most ${size(store.maxBytes)}`}`],
    ['default size', size(store.defaultSize)],
    ['free', freeText(store)],
  ]);
}

/** Older servers leave out both fields. */
const freeText = ({ freeBytes, totalBytes }: Partial<Pick<StoreJson, 'freeBytes' | 'totalBytes'>>): string =>
  freeBytes === undefined || freeBytes === null ? 'unknown' : `${size(freeBytes)} of ${size(totalBytes)}`;

async function check({ client, out }: Session, name: string, { from }: { readonly from?: string }): Promise<number> {
  const asked = from === undefined ? {} : { body: { from } };
  const { body } = await client.change({ method: 'POST', path: `${storePath(name)}/check`, ...asked });
  const result = body as StoreCheckJson;
  if (out.json) {
    out.value(result);
    return result.ok ? 0 : 1;
  }
  for (const { step: what, ok, detail, action } of result.steps) {
    if (ok && out.quiet) continue;
    out.line(
      `${out.paint(ok ? 'good' : 'bad', (ok ? 'ok' : 'failed').padEnd(8))} ${escapeControls(what)}: ${escapeControls(detail)}`,
    );
    if (action !== null && !ok) out.line(`         action: ${escapeControls(action)}`);
  }
  // Unless a step has already printed it.
  if (result.freeBytes !== null && !out.quiet && !result.steps.some((one) => one.step === 'room'))
    out.line(`room     ${size(result.freeBytes)} free of ${size(result.totalBytes)}`);
  return result.ok ? 0 : 1;
}

async function orphans({ client, out }: Session, name: string): Promise<void> {
  const found = await client.all<OrphanJson>(`${storePath(name)}/orphans`);
  if (out.json) return out.value(found);
  if (out.quiet) return found.forEach((orphan) => void out.line(escapeControls(orphan.name)));
  if (found.length === 0) return out.note(`no orphans on ${name}`);
  out.table(
    ['NAME', 'KIND', 'DETAIL', 'ACTION'],
    found.map((orphan) => [orphan.name, orphan.kind, orphan.detail, orphan.action]),
  );
}

async function add({ client, out }: Session, name: string, uri: string, options: { default?: boolean }): Promise<void> {
  const { body } = await client.change({
    method: 'POST',
    path: '/v1/stores',
    body: { name, uri, ...(options.default === undefined ? {} : { default: options.default }) },
  });
  const store = body as StoreJson;
  if (out.json) return out.value(store);
  out.line(escapeControls(store.name));
  if (store.problem !== null) out.warn(`${store.problem.message}. ${store.problem.action}`);
}

async function adopt(
  session: Session,
  name: string,
  names: readonly string[],
  options: { dryRun?: boolean; recordsOnly?: boolean },
): Promise<void> {
  const { out } = session;
  const body = {
    dryRun: options.dryRun ?? false,
    directories: !(options.recordsOnly ?? false),
    ...(names.length > 0 && { names }),
  };
  const result = await runLongOperation<AdoptionJson>(session, {
    method: 'POST',
    path: `${storePath(name)}/adopt`,
    body,
  });
  if (result === undefined) return out.note(`adopted; see: stowage volume list --store ${name}`);
  if (out.json) return out.value(result);
  if (out.quiet) return result.adopted.forEach((volume) => void out.line(escapeControls(volume.name)));
  const verb = body.dryRun ? 'would adopt' : 'adopted';
  for (const volume of result.adopted) {
    out.line(
      `${verb} ${escapeControls(volume.name)} (${volume.how === 'record' ? 'has a record' : 'data without a record'})`,
    );
  }
  for (const { name: what, reason } of result.skipped)
    out.line(`skipped ${escapeControls(what)}: ${escapeControls(reason)}`);
  out.note(`${verb} ${plural(result.adopted.length, 'volume')}, skipped ${result.skipped.length}`);
}
