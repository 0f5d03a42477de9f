import type { Writable } from 'node:stream';
import type { FindingJson } from '#front/rest/schemas.ts';

/** The world as the command line sees it; handed in, so that tests need no process. */
export interface Io {
  readonly stdout: Writable;
  readonly stderr: Writable;
  /** A person is watching: colours and progress bars are for them only. */
  readonly isTTY: boolean;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Ctrl-C. */
  readonly signal: AbortSignal;
}

export interface UpOptions {
  readonly state?: string;
  readonly socket?: string;
  /** `host:port`, or `none`. */
  readonly listen?: string;
  readonly config?: string;
  readonly logLevel?: string;
}

/** What the command line cannot do through the REST API, given by the program around it. */
export interface Injected {
  /** Runs the server until it is told to stop; the exit status. */
  up(options: UpOptions): Promise<number>;
  /** Looks at this machine without a server. */
  doctor(): Promise<readonly FindingJson[]>;
  readonly version: string;
  /** The name people call it by. */
  readonly program: string;
}
