import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { getSystemErrorName } from 'node:util';
import { isErrno } from '../errno.ts';

/** What we use of koffi's native part; its JavaScript wrapper would bring an install script along. */
interface Koffi {
  load(library: string | null): { func(prototype: string): ForeignFunction };
  struct(name: string, members: Record<string, string>): unknown;
  view(address: bigint, length: number): ArrayBuffer;
  errno(): number;
}

export interface ForeignFunction {
  (...args: readonly unknown[]): never;
  /** On a thread of Node's pool; the last argument is called with the result. */
  async(...args: readonly unknown[]): void;
}

interface Libc {
  readonly koffi: Koffi;
  func(prototype: string): ForeignFunction;
}

let loaded: Libc | undefined;

/** Loaded when first asked for: most commands never need it. */
export function libc(): Libc {
  loaded ??= load();
  return loaded;
}

/** Functions by their prototypes, bound when they are first asked for. */
export function foreign<N extends string>(
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
  const all = Object.entries<string>(prototypes).map(([name, prototype]) => [name, func(prototype)]);
  return Object.fromEntries(all) as Record<N, ForeignFunction>;
}

function load(): Libc {
  const koffi = native();
  const library = koffi.load(null);
  return { koffi, func: (prototype) => library.func(prototype) };
}

/** The bundle has it beside itself; the sources find the package. */
function native(): Koffi {
  const require = createRequire(import.meta.url);
  const beside = join(dirname(fileURLToPath(import.meta.url)), `koffi-${process.arch}.node`);
  try {
    return require(beside);
  } catch (cause) {
    if (!isErrno(cause, 'MODULE_NOT_FOUND')) throw cause;
    return require(`@koromix/koffi-linux-${process.arch}`);
  }
}

/** As Node's own calls throw it: `code` is the name of the error. */
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

/** For a call that answers -1 when it fails. */
export function checked(syscall: string, result: number | bigint): number {
  const value = Number(result);
  if (value < 0) throw new SystemError(syscall, libc().koffi.errno());
  return value;
}
