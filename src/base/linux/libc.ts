import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { getSystemErrorName } from 'node:util';
import { isErrno } from '../errno.ts';

/** The part of koffi's native API that we use; its JavaScript wrapper would bring an install script along. */
interface Koffi {
  load(library: string | null): { func(prototype: string): ForeignFunction };
  struct(name: string, members: Record<string, string>): unknown;
  view(address: bigint, length: number): ArrayBuffer;
  errno(): number;
}

export interface ForeignFunction {
  (...args: readonly unknown[]): never;
  /** Runs on libuv's thread pool; the last argument is the callback. */
  async(...args: readonly unknown[]): void;
}

interface Libc {
  readonly koffi: Koffi;
  func(prototype: string): ForeignFunction;
}

let loaded: Libc | undefined;

/** Loaded on first use: most commands never need it. */
export function libc(): Libc {
  loaded ??= load();
  return loaded;
}

/** Binds functions by their C prototypes on first use. */
export function lazyBindings<N extends string>(
  prototypes: Readonly<Record<N, string>>,
): () => Readonly<Record<N, ForeignFunction>> {
  let bound: Readonly<Record<N, ForeignFunction>> | undefined;
  return () => {
    bound ??= bind(prototypes);
    return bound;
  };
}

function bind<N extends string>(prototypes: Readonly<Record<N, string>>): Readonly<Record<N, ForeignFunction>> {
  const { func } = libc();
  const bindings = Object.entries<string>(prototypes).map(([name, prototype]) => [name, func(prototype)]);
  return Object.fromEntries(bindings) as Record<N, ForeignFunction>;
}

function load(): Libc {
  const koffi = loadKoffi();
  const library = koffi.load(null);
  return { koffi, func: (prototype) => library.func(prototype) };
}

/** The bundle ships the binary next to itself; the sources use the package. */
function loadKoffi(): Koffi {
  const require = createRequire(import.meta.url);
  const bundledPath = join(dirname(fileURLToPath(import.meta.url)), `koffi-${process.arch}.node`);
  try {
    return require(bundledPath);
  } catch (cause) {
    if (!isErrno(cause, 'MODULE_NOT_FOUND')) throw cause;
    return require(`@koromix/koffi-linux-${process.arch}`);
  }
}

/** Like the errors of Node's own system calls: `code` is the errno's name. */
export class SystemError extends Error {
  override readonly name = 'SystemError';
  readonly code: string;
  readonly syscall: string;
  constructor(syscall: string, errno: number) {
    const code = getSystemErrorName(-errno);
    super(`${syscall}: ${code}`);
    this.code = code;
    this.syscall = syscall;
  }
}

/** For calls that return -1 on failure. */
export function checkResult(syscall: string, result: number | bigint): number {
  const value = Number(result);
  if (value < 0) throw new SystemError(syscall, libc().koffi.errno());
  return value;
}
