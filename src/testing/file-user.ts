import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

/**
 * A process that opens and uses files on command. The process that serves a mount must not use the mount itself,
 * because it would wait for itself.
 */
export interface FileUser extends AsyncDisposable {
  /** Opens the file and returns its number. `flags`: names of open(2) flags; by default O_CREAT and O_RDWR. */
  open(path: string, ...flags: readonly string[]): Promise<number>;
  /** Returns 'ok', or the name of the error. */
  write(file: number, offset: number, size: number, letter: string): Promise<string>;
  sync(file: number): Promise<string>;
  truncate(file: number, size: number): Promise<string>;
  close(file: number): Promise<string>;
}

const script = `
import errno, mmap, os, sys
files = []
def aligned(size, letter):
    memory = mmap.mmap(-1, size)
    memory.write(letter.encode() * size)
    return memory
def open_file(path, *flags):
    bits = 0
    for flag in flags or ('O_CREAT', 'O_RDWR'): bits |= getattr(os, flag)
    files.append(os.open(path, bits, 0o600))
    return len(files) - 1
def write(file, offset, size, letter):
    if os.pwrite(files[int(file)], aligned(int(size), letter), int(offset)) != int(size): raise OSError(errno.EIO, 'short')
    return 'ok'
def sync(file): return os.fsync(files[int(file)]) or 'ok'
def truncate(file, size): return os.ftruncate(files[int(file)], int(size)) or 'ok'
def close(file): return os.close(files[int(file)]) or 'ok'
does = {'open': open_file, 'write': write, 'sync': sync, 'truncate': truncate, 'close': close}
for line in sys.stdin:
    what, *args = line.rstrip('\\n').split('\\t')
    try: print(does[what](*args), flush=True)
    except OSError as error: print(errno.errorcode[error.errno], flush=True)
`;

export function useFiles(): FileUser {
  const child = spawn('python3', ['-c', script], { stdio: ['pipe', 'pipe', 'inherit'] });
  const answers = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const does = async (...words: readonly (string | number)[]): Promise<string> => {
    child.stdin.write(`${words.join('\t')}\n`);
    const { value, done } = await answers.next();
    if (done === true) throw new Error('the process has ended');
    return value;
  };
  return {
    open: async (path, ...flags) => {
      const said = await does('open', path, ...flags);
      if (!/^\d+$/.test(said)) throw new Error(said);
      return Number(said);
    },
    write: (file, offset, size, letter) => does('write', file, offset, size, letter),
    sync: (file) => does('sync', file),
    truncate: (file, size) => does('truncate', file, size),
    close: (file) => does('close', file),
    [Symbol.asyncDispose]: async () => {
      child.stdin.end();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}
