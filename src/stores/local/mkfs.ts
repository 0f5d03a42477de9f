import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import type { Clock } from '#base/clock.ts';
import { unmountedImage } from '#base/e2fsprogs.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import { unlinkIfThere } from './files.ts';
import type { Ext4Geometry, XfsGeometry } from './geometry.ts';
import { blockSize, MiB } from './geometry.ts';

const execFileAsync = promisify(execFile);
const toolTimeoutMs = 120_000;

export type FilesystemType = 'xfs' | 'ext4';
const packageOf = { xfs: 'xfsprogs', ext4: 'e2fsprogs' } as const;

export interface TopDirectory {
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
}

// The PATH of daemons often has no sbin folders, where mkfs is.
const environment = (): NodeJS.ProcessEnv => ({
  ...process.env,
  ...unmountedImage,
  LC_ALL: 'C',
  PATH: `${process.env['PATH'] ?? ''}:/usr/local/sbin:/usr/sbin:/sbin`,
});

/** The smallest log that mkfs.xfs accepts, the same for every size: growing a file system does not grow its log. */
export const newXfs: XfsGeometry = {
  filesystem: 'xfs',
  block: blockSize,
  logBlocks: (64n * MiB) / blockSize,
  groupBlocks: undefined,
};

export function newExt4(bytes: bigint): Ext4Geometry {
  const journal = bytes < 128n * MiB ? 4n * MiB : bytes < 1024n * MiB ? 16n * MiB : 64n * MiB;
  return {
    filesystem: 'ext4',
    block: blockSize,
    groupBlocks: 32768n,
    descriptorSize: 64n,
    journalBlocks: journal / blockSize,
    inodeTableBlocks: undefined,
    descriptorBlocks: undefined,
  };
}

/** Sets every option that affects the size, because defaults differ between versions of the tool. */
export async function mkfsXfs(path: string, top: TopDirectory, clock: Clock, scope: Scope): Promise<void> {
  const prototype = `${path}.proto`;
  const needsPrototype = top.uid !== 0 || top.gid !== 0 || top.mode !== 0o755;
  if (needsPrototype) await writeFile(prototype, xfsPrototype(top), { flag: 'wx', mode: 0o600 });
  try {
    const features = ['-m', 'crc=1,finobt=1,reflink=1,rmapbt=0', '-b', `size=${blockSize}`, '-s', 'size=512'];
    const log = ['-l', `internal=1,size=${newXfs.logBlocks * newXfs.block}`];
    // -K: a fresh sparse file has nothing to discard.
    await runTool(
      'xfs',
      'mkfs.xfs',
      ['-q', '-K', '-f', ...features, ...log, ...(needsPrototype ? ['-p', prototype] : []), path],
      clock,
      scope,
    );
  } finally {
    if (needsPrototype) await unlinkIfThere(prototype);
  }
}

/** The format of mkfs.xfs -p: a boot file (ignored), two numbers (ignored), then the top directory. */
function xfsPrototype({ uid, gid, mode }: TopDirectory): string {
  const setIdBits = `${mode & 0o4000 ? 'u' : '-'}${mode & 0o2000 ? 'g' : '-'}`;
  return `/\n0 0\nd${setIdBits}${(mode & 0o777).toString(8).padStart(3, '0')} ${uid} ${gid}\n$\n`;
}

const ext4Features =
  'none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum';

export async function mkfsExt4(
  path: string,
  bytes: bigint,
  top: TopDirectory,
  clock: Clock,
  scope: Scope,
): Promise<void> {
  const { journalBlocks, block } = newExt4(bytes);
  const sizeOptions = [
    '-b',
    `${block}`,
    '-I',
    '256',
    '-i',
    '16384',
    '-m',
    '0',
    '-O',
    ext4Features,
    '-J',
    `size=${(journalBlocks * block) / MiB}`,
  ];
  // On a sparse file, discard punches holes. mke2fs then knows that the tables are zero and does not write them.
  const extended = ['-E', `discard,root_owner=${top.uid}:${top.gid}`];
  await runTool('ext4', 'mkfs.ext4', ['-q', '-F', ...sizeOptions, ...extended, path], clock, scope);
  if (top.mode === 0o755) return;
  const field = `set_inode_field <2> mode 0${(0o040000 | top.mode).toString(8)}`;
  await runTool('ext4', 'debugfs', ['-w', '-R', field, path], clock, scope);
}

/** Undefined: the tool is installed. */
export async function missingTool(type: FilesystemType, clock: Clock, scope: Scope): Promise<StowageError | undefined> {
  try {
    await runTool(type, `mkfs.${type}`, ['-V'], clock, scope);
    return undefined;
  } catch (cause) {
    if (cause instanceof StowageError && cause.reason === 'tool-missing') return cause;
    throw cause;
  }
}

export async function runTool(
  type: FilesystemType,
  program: string,
  args: readonly string[],
  clock: Clock,
  scope: Scope,
): Promise<void> {
  using limit = clock.deadline(toolTimeoutMs, scope.signal);
  try {
    await execFileAsync(program, [...args], {
      signal: limit.signal,
      env: environment(),
      maxBuffer: 1024 * 1024,
      killSignal: 'SIGKILL',
    });
  } catch (cause) {
    limit.signal.throwIfAborted();
    // EACCES: the program was not found, and a folder in PATH could not be searched.
    if (isErrno(cause, 'ENOENT', 'EACCES')) {
      throw new StowageError(`${program} is not installed, so Stowage cannot create an ${type} file system`, {
        code: 'unsupported',
        reason: 'tool-missing',
        action: `Install the package ${packageOf[type]} on this machine.`,
        cause,
      });
    }
    throw toolFailed(program, cause);
  }
}

function toolFailed(program: string, cause: unknown): StowageError {
  const stderr = cause instanceof Error && 'stderr' in cause ? String(cause.stderr).trim() : '';
  if (/no space left/i.test(stderr)) {
    return new StowageError(`${program} failed: no space left for the new file system`, {
      code: 'exhausted',
      reason: 'store-full',
      action: 'Free some space on the file system of the store, or delete volumes that are no longer needed.',
      cause,
    });
  }
  return new StowageError(`${program} failed: ${stderr.split('\n')[0] || 'it gave no reason'}`, {
    code: 'internal',
    reason: 'mkfs-failed',
    action:
      'Check dmesg for errors of the disk below the store, and the log of Stowage for the full output of the tool.',
    cause,
  });
}
