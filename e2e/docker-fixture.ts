import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { startDockerd } from '#testbed/dockerd.ts';
import { startPodman } from '#testbed/podman.ts';

export const startEngine = { docker: startDockerd, podman: startPodman } as const;

/** Resources of all tests of a describe block. They are disposed of in reverse order after the last test. */
export interface SuiteResources {
  readonly all: AsyncDisposableStack;
  /** Aborted after all resources are disposed of. */
  readonly signal: AbortSignal;
}

export function suiteResources(): SuiteResources {
  const abort = new AbortController();
  const resources = new AsyncDisposableStack();
  afterAll(async () => {
    await resources.disposeAsync();
    abort.abort();
  }, 60_000);
  return { all: resources, signal: abort.signal };
}

/** A folder that other users may enter: the data path runs as nobody, and NFS servers may map clients to any user. */
export async function worldReadableFolder(prefix: string, all: AsyncDisposableStack): Promise<string> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), prefix)));
  all.defer(() => rm(folder, { recursive: true, force: true }));
  await chmod(folder, 0o755);
  return folder;
}

type RunEngine = (...words: readonly string[]) => Promise<string>;

/** Runs an engine's command that must fail, and returns its error output. */
export const expectFailure =
  (run: RunEngine): RunEngine =>
  (...words) =>
    run(...words).then(
      (output) => Promise.reject(new Error(`it was not refused: ${output}`)),
      (thrown: { readonly stderr: string }) => thrown.stderr,
    );

/**
 * A script for a container with a volume at /data. It appends lines and reads each one back. It ends at the first
 * error, or when /data/stop exists.
 */
export const appendLinesScript = `
  i=0
  until [ -e /data/stop ]; do
    i=$((i + 1))
    echo "line $i" >>/data/log || exit 3
    [ "$(tail -n 1 /data/log)" = "line $i" ] || exit 4
  done`;
