import type { Scope } from '#base/log.ts';
import type { Source } from '#core/model.ts';
import { mountFailure } from '../mounter/mount-failure.ts';
import type { MountTable } from '../mounter/mountinfo.ts';
import type { RunProgram } from '../mounter/run-program.ts';

type NfsSource = Extract<Source, { kind: 'nfs' }>;

interface HostParts {
  readonly run: RunProgram;
  readonly readTable: () => Promise<MountTable>;
}

/** Mounts with the system's NFS client (client=host). Options that it does not support were refused when the store was configured. */
export async function mountByHost(
  { run, readTable }: HostParts,
  source: NfsSource,
  mountPoint: string,
  scope: Scope,
): Promise<void> {
  const mountSource = mountSourceOf(source);
  const currentMount = (await readTable()).mountAt(mountPoint);
  if (currentMount?.source === mountSource) return;
  try {
    // Uses mount.nfs, since the kernel's mount call needs the server's address resolved.
    await run('mount.nfs', [mountSource, mountPoint, '-o', hostOptions(source).join(',')], scope, {
      timeoutMs: 45_000,
    });
  } catch (cause) {
    throw mountFailure(`the volume could not be mounted at ${mountPoint} by the system's NFS client`, cause);
  }
}

const mountSourceOf = ({ hosts: [host], path }: NfsSource): string =>
  `${host.includes(':') ? `[${host}]` : host}:${path}`;

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
