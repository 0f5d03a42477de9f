import type { Writable } from 'node:stream';
import type { Clock } from '#base/clock.ts';
import { formatSize } from '#base/size.ts';
import type { OperationJson } from '#front/rest/schemas.ts';
import type { Io } from './io.ts';
import { escapeControls } from './text.ts';

export interface ProgressBar extends Disposable {
  show(operation: OperationJson): void;
  /** Removes the bar, so that other output can be printed. */
  clear(): void;
}

/** Work that ends sooner gets no bar, since it would only flicker. */
const barDelayMs = 300;
const barWidth = 24;

export const noProgressBar = (): ProgressBar => ({
  show: () => undefined,
  clear: () => undefined,
  [Symbol.dispose]: () => undefined,
});

export function createProgressBar(stream: Writable, clock: Clock): ProgressBar {
  const startedAt = clock.now();
  let drawn = false;
  const clear = (): void => {
    if (drawn) stream.write('\r\x1b[2K');
    drawn = false;
  };
  return {
    show: (operation) => {
      const ms = clock.now() - startedAt;
      if (ms < barDelayMs) return;
      const columns = 'columns' in stream && typeof stream.columns === 'number' ? stream.columns : 80;
      // A wrapped line could not be erased.
      stream.write(`\r\x1b[2K${barLine(operation, ms).slice(0, columns - 1)}`);
      drawn = true;
    },
    clear,
    [Symbol.dispose]: clear,
  };
}

/** An answer that comes sooner gets no message. */
const waitingDelayMs = 1500;

/** Shows a line while the answer is pending, and erases it afterwards. */
export function createWaiting(io: Pick<Io, 'stderr' | 'env'>, quiet: boolean, clock: Clock): () => Disposable {
  // Check standard error itself: standard output may be a file or a pipe.
  const isWatched = 'isTTY' in io.stderr && io.stderr.isTTY === true;
  if (!isWatched || quiet || io.env['TERM'] === 'dumb') return () => ({ [Symbol.dispose]: () => undefined });
  return () => {
    let drawn = false;
    const timer = clock.after(waitingDelayMs, () => {
      drawn = true;
      io.stderr.write('\r\x1b[2Kwaiting for the server…');
    });
    return {
      [Symbol.dispose]: () => {
        timer[Symbol.dispose]();
        if (drawn) io.stderr.write('\r\x1b[2K');
      },
    };
  };
}

/** `delete local/x  [######------------------]  25%  250/1000 files  3s` */
export function barLine(operation: OperationJson, ms: number): string {
  const title = escapeControls(`${operation.kind} ${operation.subject}`);
  return [title, ...progressParts(operation.progress, ms), `${Math.floor(ms / 1000)}s`].join('  ');
}

function progressParts(progress: OperationJson['progress'], ms: number): string[] {
  const amount = (n: number): string =>
    progress?.unit === 'bytes' ? formatSize(BigInt(Math.max(0, Math.round(n)))) : String(Math.round(n));
  const unit = progress === null || progress.unit === 'bytes' ? '' : ` ${escapeControls(progress.unit)}`;
  if (progress === null || progress.total === null || progress.total <= 0) {
    const at = Math.floor(ms / 200) % (2 * barWidth - 2);
    const spot = at < barWidth ? at : 2 * barWidth - 2 - at;
    const moving = `[${'-'.repeat(spot)}#${'-'.repeat(barWidth - 1 - spot)}]`;
    return progress === null ? [moving] : [moving, `${amount(progress.done)}${unit}`];
  }
  const part = Math.min(1, Math.max(0, progress.done / progress.total));
  const full = Math.floor(part * barWidth);
  return [
    `[${'#'.repeat(full)}${'-'.repeat(barWidth - full)}]`,
    `${String(Math.floor(part * 100)).padStart(3)}%`,
    `${amount(progress.done)}/${amount(progress.total)}${unit}`,
  ];
}
