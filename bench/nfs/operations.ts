/** The operations that both programs support: Stowage's client and the one on libnfs. */
export type OperationName = 'getattr' | 'lookup' | 'mkdir' | 'file' | 'read' | 'write' | 'readdirplus';

/** One measurement. */
export interface Task {
  readonly operation: OperationName;
  readonly inFlight: number;
  /** The displayed name. */
  readonly name: string;
  readonly unit: string;
}

const deep = 64;

const small = ([operation, name]: readonly [OperationName, string]): readonly Task[] =>
  [1, deep].map((inFlight) => ({ operation, inFlight, name: `${name}, ${inFlight} in flight`, unit: '/s' }));

const large = (operation: 'read' | 'write'): readonly Task[] =>
  [1, 16].map((inFlight) => ({ operation, inFlight, name: `${operation} 1 MiB, depth ${inFlight}`, unit: 'MiB/s' }));

export const tasks: readonly Task[] = [
  ...(
    [
      ['getattr', 'getattr'],
      ['lookup', 'lookup'],
      ['mkdir', 'mkdir'],
      ['file', 'create + write 4k + remove'],
    ] as const
  ).flatMap(small),
  ...large('write'),
  ...large('read'),
  { operation: 'readdirplus', inFlight: 1, name: 'readdirplus, entries', unit: '/s' },
];

export const isDeep = ({ inFlight }: Task): boolean => inFlight === deep;
export const isPipelined = ({ inFlight }: Task): boolean => inFlight > 1;
export const isWrite = ({ operation }: Task): boolean => operation === 'write';

/** The result that such a program prints. */
export interface Answer {
  readonly perSecond: number;
  /** User and system CPU time of the program, for each operation. */
  readonly cpuMicroseconds: number;
}
