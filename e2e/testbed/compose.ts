import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { type Component, cachedBuild, missingPrograms, onPath } from './component.ts';
import type { Engine } from './dockerd.ts';
import { digest } from './rootfs.ts';

const version = '2.40.3';
const source = join(import.meta.dirname, 'compose');
const sources = ['go.mod', 'go.sum'].map((name) => readFileSync(join(source, name), 'utf8'));
const cachedPlugin = cachedBuild('compose', `${version}-${digest(...sources)}`, 'cli-plugins/docker-compose');
const commandTimeoutMs = 180_000;

/** Debian's docker-compose package is the older program, which users no longer have. */
export const compose: Component = {
  what: `Docker Compose ${version}, a plugin of the docker command`,
  probe: () => {
    const why = cachedPlugin.probe();
    const lacking = missingPrograms('go');
    return why === undefined || lacking === undefined ? why : `${why}, and to build it: ${lacking}`;
  },
  tool: cachedPlugin.tool,
  command: 'install Go 1.21 or newer, then npm run testbed',
  packages: () => (missingPrograms('go') === undefined ? [] : ['golang-go']),
  make: async (run) => {
    await rm(cachedPlugin.folder(), { recursive: true, force: true });
    await mkdir(dirname(cachedPlugin.tool()), { recursive: true });
    // A Go that is too old downloads the required toolchain like any other module.
    const env = ['CGO_ENABLED=0', 'GOTOOLCHAIN=auto', 'go'];
    const flags = ['-mod=readonly', '-buildvcs=false', '-trimpath', '-ldflags', '-s -w', '-o', cachedPlugin.tool()];
    await run('env', [...env, 'build', ...flags, 'github.com/docker/compose/v2/cmd'], { cwd: source });
    await writeFile(cachedPlugin.marker(), '');
  },
};

export interface ComposeOptions {
  /** The environment of the command, or the contents of `.env`. */
  readonly env?: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
}

/** Runs `docker compose` in a folder. Returns its output, including its progress. */
export async function dockerCompose(
  { socket }: Pick<Engine, 'socket'>,
  folder: string,
  words: readonly string[],
  { env, signal }: ComposeOptions,
): Promise<string> {
  const docker = onPath('docker') ?? 'docker';
  const { stdout, stderr } = await promisify(execFile)(docker, ['--host', `unix://${socket}`, 'compose', ...words], {
    // The client searches for plugins in its configuration folder.
    env: { ...env, PATH: process.env['PATH'], DOCKER_CONFIG: cachedPlugin.folder() },
    cwd: folder,
    signal,
    timeout: commandTimeoutMs,
  });
  return `${stdout}${stderr}`;
}
