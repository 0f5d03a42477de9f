import { readFile, stat } from 'node:fs/promises';
import type { Container } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { networkHidden } from './network-errors.ts';

/** The namespace as the engine reports it, or that of the container's first process if /proc shows it. */
export async function namespaceOf({ id, name, sandbox, state: { pid } }: Container): Promise<string> {
  if (sandbox !== '' && (await isNamespace(sandbox))) return sandbox;
  // In another pid namespace than the engine's, the pid may belong to another process.
  const groups = await readFile(`/proc/${pid}/cgroup`, 'utf8').catch(() => '');
  if (pid > 0 && groups.includes(id)) return `/proc/${pid}/ns/net`;
  throw networkHidden(name, sandbox);
}

const isNamespace = async (path: string): Promise<boolean> => {
  try {
    // A bind-mounted namespace is on nsfs; a leftover empty file is not.
    return (await stat(path)).dev === (await stat('/proc/self/ns/net')).dev;
  } catch {
    return false;
  }
};

/** Undefined: the engine has no such object. */
export async function undefinedIfMissing<T>(call: Promise<T>): Promise<T | undefined> {
  try {
    return await call;
  } catch (thrown) {
    if (thrown instanceof DockerError && thrown.status === 404) return undefined;
    throw thrown;
  }
}
