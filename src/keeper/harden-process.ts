import { readFileSync, writeFileSync } from 'node:fs';
import { type ForeignFunction, libc } from '#base/linux/libc.ts';

/** The protection that the system granted. */
export interface Hardening {
  /** The kernel's scale: -1000 is never killed, 1000 first. */
  readonly oomScore: number;
  /** The program's code stays in memory under memory pressure. */
  readonly isCodeLocked: boolean;
  /** No core dumps, and no other process of the same user may read its memory. */
  readonly isClosed: boolean;
}

const rlimitCore = 4;
const rlimitMemlock = 8;
const unlimited = 2n ** 64n - 1n;
const prSetDumpable = 4;
const capIpcLock = 1n << 14n;
/** The system call's number: not every C library has a wrapper. */
const mlock2Number = { x64: 325, arm64: 284 } as const;
const mlockOnFault = 1;

/**
 * As far as permitted: excluded from the OOM killer, code locked in memory, closed to debuggers. Call it before any
 * secret is known.
 */
export function hardenProcess(title: string, oomScore: number): Hardening {
  process.title = title;
  const { func } = libc();
  const granted = lowerOomScore(oomScore);
  const isCodeLocked = mayLock(func) && lockCode(func);
  const isClosed = denyMemoryAccess(func);
  return { oomScore: granted, isCodeLocked, isClosed };
}

/** An unprivileged process can lower its score only to a value that a privileged one had set. */
function lowerOomScore(wanted: number): number {
  const file = '/proc/self/oom_score_adj';
  const currentScore = Number(readFileSync(file, 'utf8'));
  for (const score of [wanted, -500, 0].filter((score) => score >= wanted && score < currentScore)) {
    try {
      writeFileSync(file, String(score));
      return score;
    } catch {
      // Not permitted to go that low.
    }
  }
  return currentScore;
}

type Func = (prototype: string) => ForeignFunction;

/** With a limit, a later allocation could fail: then lock nothing. */
function mayLock(func: Func): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '0';
  if ((BigInt(`0x${effective}`) & capIpcLock) !== 0n) return true;
  const limit = Buffer.alloc(16);
  const status: number = func('int getrlimit(int which, void *limit)')(rlimitMemlock, limit);
  return status === 0 && limit.readBigUInt64LE(0) === unlimited;
}

/**
 * Locks the code, page by page as it is used, so that it need not be read from disk under memory pressure. Not the
 * data, and never `mlockall`: V8 returns heap pages with madvise, which the kernel refuses for locked pages, and that
 * ends the process.
 */
function lockCode(func: Func): boolean {
  const syscallNumber = mlock2Number[process.arch as keyof typeof mlock2Number];
  if (syscallNumber === undefined) return false;
  const call = func('int64_t syscall(int64_t number, uint64_t from, uint64_t length, int64_t flags)');
  const mappings = readFileSync('/proc/self/maps', 'utf8').matchAll(/^([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ \S+ +\//gm);
  return [...mappings].every(([, from, to]) => {
    const [start, end] = [BigInt(`0x${from}`), BigInt(`0x${to}`)];
    const result: number | bigint = call(syscallNumber, start, end - start, mlockOnFault);
    return Number(result) === 0;
  });
}

function denyMemoryAccess(func: Func): boolean {
  const zeroLimit = Buffer.alloc(16);
  const coreResult: number = func('int setrlimit(int which, void *limit)')(rlimitCore, zeroLimit);
  const dumpableResult: number = func('int prctl(int option, uint64_t a, uint64_t b, uint64_t c, uint64_t d)')(
    prSetDumpable,
    0,
    0,
    0,
    0,
  );
  return coreResult === 0 && dumpableResult === 0;
}
