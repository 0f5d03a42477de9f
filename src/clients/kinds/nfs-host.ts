import type { Scope } from '#base/log.ts';
import type { Source } from '#core/model.ts';
import { mountFailure } from '../mounter/mount-failure.ts';
import type { MountTable } from '../mounter/mountinfo.ts';
import type { Run } from '../mounter/run-program.ts';

type NfsSource = Extract<Source, { kind: 'nfs' }>;

interface HostParts {
  readonly run: Run;
  readonly readTable: () => Promise<MountTable>;
}

/** Mounts with the system's NFS client (client=host). Options that it does not support were refused when the store was configured. */
export async function mountByHost(
  { run, readTable }: HostParts,
  source: NfsSource,
  place: string,
  scope: Scope,
): Promise<void> {
  const from = shown(source);
  const there = (await readTable()).at(place);
  if (there?.source === from) return;
  try {
    // Uses mount.nfs, since the kernel's mount call needs the server's address resolved.
    await run('mount.nfs', [from, place, '-o', hostOptions(source).join(',')], scope, { deadline: 45_000 });
  } catch (cause) {
    throw mountFailure(`the volume could not be mounted at ${place} by the system's NFS client`, cause);
  }
}

const shown = ({ hosts: [host], path }: NfsSource): string => `${host.includes(':') ? `[${host}]` : host}:${path}`;

function hostOptions({ way }: NfsSource): readonly string[] {
  const timeo = Math.max(1, Math.round((way.softMs ?? 60_000) / 100));
  return [
    'vers=3',
    'proto=tcp',
    `port=${way.port}`,
    'nosuid',
    'nodev',
    ...(way.mountPort === undefined ? [] : [`mountport=${way.mountPort}`]),
    ...(way.softMs === undefined ? ['hard'] : ['soft', `retrans=${Math.max(1, way.retries ?? 1)}`]),
    `timeo=${timeo}`,
    `rsize=${way.maxRead}`,
    `wsize=${way.maxWrite}`,
    ...(way.connections > 1 ? [`nconnect=${way.connections}`] : []),
    way.sourcePorts === 'privileged' ? 'resvport' : 'noresvport',
    // Without server-side locks: they then hold on this node only, which the administrator allowed.
    ...(way.locks === 'node' ? ['nolock'] : []),
    ...(way.sync === true ? ['sync'] : []),
    ...(way.readOnly ? ['ro'] : []),
  ];
}
