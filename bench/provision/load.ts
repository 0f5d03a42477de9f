/**
 * Creates claims of a class, 32 at a time, and reports when all PersistentVolumes existed and when all claims were
 * bound. Or deletes them, and reports when the last PersistentVolume was gone. It is a process in the cluster's
 * network, so that it reaches the API server in the same way as the measured programs.
 */
import { readFileSync } from 'node:fs';
import { systemClock } from '#base/clock.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';

const [accessFile = '', what = '', className = '', prefix = '', countText] = process.argv.slice(2);
const count = Number(countText);
const namespace = 'default';
const inFlight = 32;
const { signal } = new AbortController();

const { server, token, ca } = JSON.parse(readFileSync(accessFile, 'utf8')) as Record<string, string>;
const identity = { authorization: `Bearer ${token}`, tls: { ca: readFileSync(ca ?? '', 'utf8') } };
const client: KubeClient = createKubeClient({
  access: { server: new URL(server ?? ''), namespace, identity: async () => identity },
  clock: systemClock(),
  userAgent: 'bench',
  maxSockets: inFlight,
});

/** Calls `isEnough` with every existing and new object until it returns true. Returns the time of that. */
async function untilSeen<T extends KubeObject>(
  resource: Resource<T>,
  isEnough: (object: T, isThere: boolean) => boolean,
  ready: () => void,
): Promise<number> {
  let resourceVersion = '';
  for await (const page of client.list(resource, {}, signal)) {
    ({ resourceVersion } = page);
    for (const object of page.items) if (isEnough(object, true)) return performance.now();
  }
  ready();
  for await (const change of client.watch(resource, { resourceVersion }, signal))
    if (change.kind !== 'bookmark' && isEnough(change.object, change.kind !== 'deleted')) return performance.now();
  throw new Error('the watch has ended');
}

async function all(names: readonly string[], work: (name: string) => Promise<unknown>): Promise<void> {
  let at = 0;
  const worker = async (): Promise<void> => {
    while (at < names.length) await work(names[at++] ?? '');
  };
  await Promise.all(Array.from({ length: inFlight }, worker));
}

const names = Array.from({ length: count }, (_, at) => `${prefix}-${at}`);
const claimSpec = {
  accessModes: ['ReadWriteOnce'],
  storageClassName: className,
  resources: { requests: { storage: '1Gi' } },
};
const claimOf = (name: string): PersistentVolumeClaim => ({ metadata: { name, namespace }, spec: claimSpec });
const isOurs = ({ spec }: PersistentVolume): boolean =>
  spec.storageClassName === className && spec.claimRef?.name?.startsWith(`${prefix}-`) === true;

async function create(): Promise<object> {
  const made = new Set<string>();
  const bound = new Set<string>();
  const both = Promise.withResolvers<void>();
  let listed = 0;
  const ready = (): void => {
    listed++;
    if (listed === 2) both.resolve();
  };
  const volumesMade = untilSeen(
    persistentVolumes,
    (volume) => {
      if (isOurs(volume)) made.add(volume.metadata.name ?? '');
      return made.size >= count;
    },
    ready,
  );
  const claimsBound = untilSeen(
    claims,
    ({ metadata: { name = '' }, status }) => {
      if (name.startsWith(`${prefix}-`) && status?.phase === 'Bound') bound.add(name);
      return bound.size >= count;
    },
    ready,
  );
  await both.promise;
  const began = performance.now();
  await all(names, (name) => client.create(claims, claimOf(name), signal));
  const claimsMs = performance.now() - began;
  return { claimsMs, madeMs: (await volumesMade) - began, boundMs: (await claimsBound) - began };
}

/** `sweep`: also deletes the PersistentVolumes, because no provisioner does. */
async function remove(sweep: boolean): Promise<object> {
  const left = new Set<string>();
  for await (const { items } of client.list(persistentVolumes, {}, signal))
    for (const volume of items) if (isOurs(volume)) left.add(volume.metadata.name ?? '');
  const here = Promise.withResolvers<void>();
  const gone = untilSeen(
    persistentVolumes,
    ({ metadata: { name = '' } }, isThere) => {
      if (!isThere) left.delete(name);
      return left.size === 0;
    },
    here.resolve,
  );
  await here.promise;
  const began = performance.now();
  const absent = (error: unknown): void => {
    if (reasonOf(error) !== 'NotFound') throw error;
  };
  await all(names, (name) => client.delete(claims, { namespace, name }, {}, signal).catch(absent));
  if (sweep) await all([...left], (name) => client.delete(persistentVolumes, { name }, {}, signal).catch(absent));
  return { goneMs: (await gone) - began };
}

/** Binds claims like the PersistentVolume controller, which would take many minutes. */
async function bind(): Promise<object> {
  const made = new Map<string, string>();
  const here = Promise.withResolvers<void>();
  const allMade = untilSeen(
    persistentVolumes,
    (volume) => {
      if (isOurs(volume)) made.set(volume.spec.claimRef?.name ?? '', volume.metadata.name ?? '');
      return made.size >= count;
    },
    here.resolve,
  );
  await here.promise;
  await all(names, (name) => client.create(claims, claimOf(name), signal));
  await allMade;
  const merge = (body: object) => ({ kind: 'merge', body }) as const;
  await all(names, async (name) => {
    const volumeName = made.get(name) ?? '';
    const about = { capacity: { storage: '1Gi' }, accessModes: ['ReadWriteOnce'], phase: 'Bound' };
    const annotations = { 'pv.kubernetes.io/bind-completed': 'yes', 'pv.kubernetes.io/bound-by-controller': 'yes' };
    const at = { namespace, name };
    await client.patch(claims, at, merge({ metadata: { annotations }, spec: { volumeName } }), signal);
    await client.patch(claims, { ...at, subresource: 'status' }, merge({ status: about }), signal);
    const status = { status: { phase: 'Bound' } };
    await client.patch(persistentVolumes, { name: volumeName, subresource: 'status' }, merge(status), signal);
  });
  return {};
}

const work = { create, bind, remove: () => remove(false), sweep: () => remove(true) };
if (!(what in work)) throw new Error(`unknown action ${what}`);
console.log(JSON.stringify(await work[what as keyof typeof work]()));
// The watches would keep the process running.
process.exit();
