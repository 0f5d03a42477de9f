import { isProcessMark } from '#stores/nfs/lock-marks.ts';

/** A controller process: its mark, and what can prove its death to another process. */
export interface ControllerProcess {
  readonly mark: number;
  readonly kernel?: KernelProcess;
  readonly pod?: { readonly name: string; readonly uid: string };
}

/** Identifies a process on its kernel. */
export interface KernelProcess {
  /** The boot id and the namespaces in which `pid` and `startTime` are valid. */
  readonly scope: string;
  readonly pid: number;
  /** In clock ticks since boot. Distinguishes processes that had the same pid. */
  readonly startTime: string;
}

/** The controller processes of a cluster, stored in an annotation of their Lease. */
export interface ControllerRegistry {
  /** Not known to be dead; the newest first. */
  readonly processes: readonly ControllerProcess[];
  /** The marks of dead processes, whose locks may still be on stores; the newest first. */
  readonly dead: readonly number[];
}

export const registryAnnotation = 'stowage.dev/controller-processes';

const registryVersion = 1;
/** The leader rewrites the Lease every 2 s, so it must stay small. A dropped mark counts as an unknown host, for whose locks others wait. */
const maxDeadMarks = 64;
const maxProcesses = 16;
const maxAnnotationLength = 64 * 1024;
const maxFieldLength = 253;

/** An unreadable text, or one of a later version, counts as empty. */
export function readRegistry(text: string | undefined): ControllerRegistry {
  const nothing: ControllerRegistry = { processes: [], dead: [] };
  if (text === undefined || text.length > maxAnnotationLength) return nothing;
  try {
    const found: unknown = JSON.parse(text);
    if (!isObject(found) || found['version'] !== registryVersion) return nothing;
    return {
      processes: listOf(found['processes']).flatMap((each) => processFrom(each) ?? []),
      dead: listOf(found['dead']).filter(isProcessMark),
    };
  } catch {
    return nothing;
  }
}

export const writeRegistry = ({ processes, dead }: ControllerRegistry): string =>
  JSON.stringify({
    version: registryVersion,
    processes: processes.slice(0, maxProcesses),
    dead: dead.slice(0, maxDeadMarks),
  });

/** Adds a process. Adding it again changes nothing. */
export const withProcess = (registry: ControllerRegistry, process: ControllerProcess): ControllerRegistry => ({
  processes: [process, ...registry.processes.filter(({ mark }) => mark !== process.mark)],
  dead: registry.dead.filter((mark) => mark !== process.mark),
});

/** `isDead` must not guess: other processes take over the locks of a dead one. */
export async function withDeaths(
  registry: ControllerRegistry,
  isDead: (process: ControllerProcess) => Promise<boolean>,
): Promise<ControllerRegistry> {
  const verdicts = await Promise.all(registry.processes.map(isDead));
  const died = registry.processes.filter((_, at) => verdicts[at]).map(({ mark }) => mark);
  return {
    processes: registry.processes.filter((_, at) => !verdicts[at]),
    dead: [...new Set([...died, ...registry.dead])],
  };
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null;
const isWord = (value: unknown): value is string =>
  typeof value === 'string' && value !== '' && value.length <= maxFieldLength;
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

function processFrom(value: unknown): ControllerProcess | undefined {
  if (!isObject(value) || !isProcessMark(value['mark'])) return undefined;
  const kernel = kernelFrom(value['kernel']);
  const pod = podFrom(value['pod']);
  return { mark: value['mark'], ...(kernel && { kernel }), ...(pod && { pod }) };
}

function kernelFrom(value: unknown): KernelProcess | undefined {
  if (!isObject(value)) return undefined;
  const { scope, pid, startTime } = value;
  // kill(2) gives 0 and negative numbers another meaning.
  const isPid = typeof pid === 'number' && Number.isSafeInteger(pid) && pid > 0;
  return isPid && isWord(scope) && isWord(startTime) ? { scope, pid, startTime } : undefined;
}

function podFrom(value: unknown): ControllerProcess['pod'] {
  if (!isObject(value)) return undefined;
  const { name, uid } = value;
  return isWord(name) && isWord(uid) ? { name, uid } : undefined;
}
