import { execFileSync } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';

/** A real program or feature that a test needs and a machine may lack. */
export interface Component {
  /** A description in one line. */
  readonly what: string;
  /**
   * Returns undefined if the component is available, and otherwise the reason. Must be quick: each test file that needs
   * the component calls it once.
   */
  readonly probe: () => string | undefined;
  /** The command that provides the component. */
  readonly command: string;
  /**
   * Debian packages that contain the component. Called if it is missing. A '?' at the end: only if Debian has such a
   * package.
   */
  readonly packages?: () => readonly string[];
  /** Builds the component in the cache folder. Called after the packages are installed. */
  readonly make?: (run: Run) => Promise<void>;
  /** The program in the cache folder that tests start. */
  readonly tool?: () => string;
}

/** Runs a program and returns its standard output. If the exit status is not 0, rejects with both outputs. */
export type Run = (file: string, args: readonly string[], options?: { readonly cwd?: string }) => Promise<string>;

export const testbedCommand = 'npm run testbed';
export const repository = dirname(dirname(import.meta.dirname));

/** The folder where `npm run testbed` keeps downloads and builds. */
export function cacheFolder(): string {
  const configuredFolder = process.env['STOWAGE_TESTBED_CACHE'];
  if (configuredFolder !== undefined && configuredFolder !== '') return configuredFolder;
  const xdg = process.env['XDG_CACHE_HOME'];
  return join(xdg !== undefined && xdg !== '' ? xdg : join(homedir(), '.cache'), 'stowage-testbed');
}

/** The path of a program. An ordinary user's PATH often lacks the sbin folders, which contain mkfs and losetup. */
export function onPath(program: string): string | undefined {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/local/sbin', '/usr/sbin', '/sbin'];
  return folders
    .filter((folder) => folder !== '')
    .map((folder) => join(folder, program))
    .find(isExecutable);
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export function missingPrograms(...programs: readonly string[]): string | undefined {
  const missing = programs.filter((program) => onPath(program) === undefined);
  return missing.length === 0 ? undefined : `not found: ${missing.join(', ')}`;
}

/** Undefined if the program exited with 0 within the deadline, and otherwise the first line of its output. */
export function commandFailure(
  file: string,
  args: readonly string[],
  options: { readonly cwd?: string } = {},
): string | undefined {
  try {
    execFileSync(file, args, { ...options, stdio: ['ignore', 'ignore', 'pipe'], timeout: 10_000 });
    return undefined;
  } catch (error) {
    const errorOutput = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
    return errorOutput.split('\n')[0] || (error instanceof Error ? error.message : String(error));
  }
}

/**
 * A build of a fixed version in the cache folder. The marker is written last, so that an incomplete build is repeated.
 */
export interface CachedBuild {
  readonly folder: () => string;
  readonly marker: () => string;
  readonly tool: () => string;
  readonly probe: () => string | undefined;
}

/** A component that cargo builds into its cache folder. */
export const builtByCargo = (build: CachedBuild): Pick<Component, 'probe' | 'tool' | 'command' | 'packages'> => ({
  probe: () => {
    const why = build.probe();
    const lacking = missingPrograms('cargo', 'gcc');
    return why === undefined || lacking === undefined ? why : `${why}, and to build it: ${lacking}`;
  },
  tool: build.tool,
  command: 'install Rust 1.88 or newer with rustup, then npm run testbed',
  packages: () => (missingPrograms('gcc') === undefined ? [] : ['gcc', 'libc6-dev']),
});

export function cachedBuild(name: string, version: string, program: string): CachedBuild {
  const folder = (): string => join(cacheFolder(), `${name}-${version}`);
  const marker = (): string => join(folder(), '.complete');
  const tool = (): string => join(folder(), program);
  const probe = (): string | undefined =>
    existsSync(marker()) && existsSync(tool()) ? undefined : `${name} ${version} is not in the cache folder`;
  return { folder, marker, tool, probe };
}
