import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { startDockerd } from '#testbed/dockerd.ts';
import { startPodman } from '#testbed/podman.ts';

export const startEngine = { docker: startDockerd, podman: startPodman } as const;

/** What the tests of a describe share: it ends after the last of them, in the reverse order of its beginning. */
export interface SuiteResources {
  readonly all: AsyncDisposableStack;
  /** For what can be given one; it is over when all of it has ended. */
  readonly signal: AbortSignal;
}

export function suiteResources(): SuiteResources {
  const over = new AbortController();
  const all = new AsyncDisposableStack();
  afterAll(async () => {
    await all.disposeAsync();
    over.abort();
  }, 60_000);
  return { all, signal: over.signal };
}

/** Everybody may pass, as usual: so the data path runs as nobody, and servers take clients for whomever they like. */
export async function worldReadableFolder(prefix: string, all: AsyncDisposableStack): Promise<string> {
  const at = await realpath(await mkdtemp(join(tmpdir(), prefix)));
  all.defer(() => rm(at, { recursive: true, force: true }));
  await chmod(at, 0o755);
  return at;
}

type Run = (...words: readonly string[]) => Promise<string>;

/** What an engine's command says when it does not do it. */
export const expectFailure =
  (run: Run): Run =>
  (...words) =>
    run(...words).then(
      (said) => Promise.reject(new Error(`it was not refused: ${said}`)),
      (thrown: { readonly stderr: string }) => thrown.stderr,
    );

/** For a container with a volume at /data: adds lines, reads each back, and ends as soon as anything fails, or is told to. */
export const appendLinesScript = `
  i=0
  until [ -e /data/stop ]; do
    i=$((i + 1))
    echo "line $i" >>/data/log || exit 3
    [ "$(tail -n 1 /data/log)" = "line $i" ] || exit 4
  done`;
