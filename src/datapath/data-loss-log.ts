import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { ErrnoName } from '#wire/fuse/errno.ts';

/** Acknowledged data of a file that did not reach the server's disk. */
export interface DataLoss {
  /** The node's id. */
  readonly id: number;
  /** The server's file id (`ls -i`), if known. */
  readonly fileId: bigint | undefined;
  readonly code: ErrnoName;
  readonly bytes: number;
}

export interface DataLossLogParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly mount: string;
  /** For users, who may not read the log. */
  readonly report: (text: string) => void;
}

/** Files named per window; the rest is summarized in one line. */
const maxNamedFiles = 20;
const windowMs = 60_000;

/** If the writer exits before it gets the error, the log is the only report. */
export function createDataLossLog({ clock, log, mount, report }: DataLossLogParts): (loss: DataLoss) => void {
  const namedFiles = new Set<number>();
  let [writes, moreBytes] = [0, 0];

  function startWindow(code: ErrnoName): void {
    clock.after(windowMs, endWindow);
    report(
      `${new Date(clock.now()).toISOString()}: acknowledged data of ${mount} were lost (${code}); the log names the files`,
    );
  }

  function endWindow(): void {
    if (writes > 0) log.error('more acknowledged data were lost', { mount, writes, bytes: moreBytes });
    namedFiles.clear();
    [writes, moreBytes] = [0, 0];
  }

  return ({ id, fileId, code, bytes }) => {
    if (namedFiles.has(id) || namedFiles.size >= maxNamedFiles) {
      writes++;
      moreBytes += bytes;
      return;
    }
    if (namedFiles.size === 0) startWindow(code);
    namedFiles.add(id);
    log.error('acknowledged data were lost', { mount, file: fileId?.toString(), error: code, bytes });
  };
}
