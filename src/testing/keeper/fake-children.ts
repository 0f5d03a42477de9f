import type { Connection, Handlers } from '#keeper/connection.ts';
import type { Kind, Message } from '#keeper/protocol.ts';
import type { ProcessHandle } from '#keeper/worker.ts';

/** A data path that a test controls. */
export interface FakeChild {
  readonly program: string;
  readonly sent: readonly Message[];
  readonly isOpen: boolean;
  /** The keeper has told the process to end, and it has not ended yet. */
  readonly isEnding: boolean;
  says(message: Message, descriptors?: readonly number[]): void;
  hello(): void;
  /** Marks the process as killed while one of its threads hangs, so its connection is still open. */
  wasKilled(): void;
  /** Closes the connection while the process keeps running. */
  breaks(): void;
  /** Closes the connection and ends the process. */
  dies(): Promise<void>;
}

export interface FakeChildren {
  readonly all: readonly FakeChild[];
  readonly start: (program: string) => ProcessHandle;
}

/** Resolves after all callbacks of resolved promises have run. */
export const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

export function createFakeChildren(): FakeChildren {
  const all: FakeChild[] = [];
  return {
    all,
    start: (program) => {
      const { fake, child } = createFakeChild(program, all.length + 1);
      all.push(fake);
      return child;
    },
  };
}

function createFakeChild(program: string, pid: number): { readonly fake: FakeChild; readonly child: ProcessHandle } {
  const sent: Message[] = [];
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  let handlers: Handlers<Kind> | undefined;
  let isOpen = true;
  let isEnding = false;
  let isDying = false;
  const close = (): void => {
    if (!isOpen) return;
    isOpen = false;
    handlers?.closed('test');
  };
  const connection: Connection = {
    get isOpen() {
      return isOpen;
    },
    send: (message) => void sent.push(message),
    handle: (next) => {
      handlers = next as unknown as Handlers<Kind>;
    },
    close,
  };
  const says: FakeChild['says'] = (message, descriptors = []) => handlers?.message(message, [...descriptors]);
  return {
    child: {
      connection,
      end: () => {
        isEnding = true;
        return ended;
      },
      isDying: () => isDying,
      forget: () => undefined,
    },
    fake: {
      program,
      sent,
      says,
      breaks: close,
      get isOpen() {
        return isOpen;
      },
      get isEnding() {
        return isEnding;
      },
      hello: () => says({ kind: 'hello', role: 'data path', pid, version: program }),
      wasKilled: () => {
        isDying = true;
      },
      dies: async () => {
        close();
        end();
        await settled();
      },
    },
  };
}
