import { startGanesha } from '#testbed/ganesha.ts';
import { type Compared, compare } from './nfs/compare.ts';
import { startLibnfs, startOurs } from './nfs/driver.ts';
import { makeFolder, places } from './nfs/folder.ts';
import { isDeep, isPipelined, isWrite, type Task, tasks } from './nfs/operations.ts';
import { type Row, toRow } from './report.ts';

const rounds = 17;

export const bench = {
  about: 'our NFS client against libnfs (C), on one nfs-ganesha, one connection each',
  run: async (signal: AbortSignal, note: (text: string) => void): Promise<readonly Row[]> => {
    const [place] = places();
    if (place === undefined) throw new Error('there is no file system to measure on');
    note(`nfs-ganesha on ${place.kind}`);
    await using folder = await makeFolder(place, ['ours', 'libnfs']);
    const exports = [{ path: folder.path, tag: 'bench', squash: 'none' }] as const;
    await using ganesha = await startGanesha({ exports, signal });
    const target = { host: ganesha.host, nfsPort: ganesha.nfsPort, mountPort: ganesha.mountPort, path: folder.path };
    await using ours = startOurs(target, 'ours', signal);
    await using yardstick = startLibnfs(target, 'libnfs', signal);
    const compared = await compare({ ours, yardstick }, tasks, rounds, note);
    return [...compared.map(speed), ...compared.map(cpu)];
  },
};

const speed = ({ task, ours, yardstick }: Compared): Row =>
  toRow({
    name: task.name,
    unit: task.unit,
    values: ours.map((one) => one.perSecond),
    yardsticks: yardstick.map((one) => one.perSecond),
    goal: { ratioAtLeast: isPipelined(task) || isWrite(task) ? 1 : 0.9 },
  });

const cpu = ({ task, ours, yardstick }: Compared): Row =>
  toRow({
    name: `${task.name}: CPU of the client`,
    unit: 'µs',
    values: ours.map((one) => one.cpuMicroseconds),
    yardsticks: yardstick.map((one) => one.cpuMicroseconds),
    ...cpuGoal(task),
  });

const cpuGoal = (task: Task) => (isDeep(task) ? { goal: { ratioAtMost: 1.5 } } : {});
