import { checkOut } from '#testbed/earlier-commit.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import type { Bench } from './bench.ts';
import { type Comparison, compare } from './nfs/compare.ts';
import { startLibnfs, startOurs } from './nfs/driver.ts';
import { makeFolder, measuredFileSystems } from './nfs/measured-folder.ts';
import { isDeep, isPipelined, isWrite, type Task, tasks } from './nfs/operations.ts';
import { type Goal, noMore, noSlower, type Row, toRow } from './report.ts';

const usualRounds = 17;
/** Two versions of the same client differ little, so the samples must be longer. */
const longSampleMs = 500;

export const bench: Bench = {
  about: 'our NFS client against libnfs (C), on one nfs-ganesha, one connection each',
  options: ['rounds', 'against'],
  run: async (signal, note, { rounds = usualRounds, against }) => {
    const [place] = measuredFileSystems();
    if (place === undefined) throw new Error('there is no file system to measure on');
    note(`nfs-ganesha on ${place.kind}`);
    await using earlier = against === undefined ? undefined : await checkOut(against, signal);
    await using folder = await makeFolder(place, ['ours', 'yardstick']);
    const exports = [{ path: folder.path, tag: 'bench', squash: 'none' }] as const;
    await using ganesha = await startGanesha({ exports, signal });
    const target = { host: ganesha.host, nfsPort: ganesha.nfsPort, mountPort: ganesha.mountPort, path: folder.path };
    await using ours = startOurs(target, 'ours', signal);
    await using yardstick =
      earlier === undefined
        ? startLibnfs(target, 'yardstick', signal)
        : startOurs(target, 'yardstick', signal, earlier.path);
    const compared = await compare({ ours, yardstick }, tasks, rounds, note, earlier && longSampleMs);
    const goals = earlier === undefined ? goalsAgainstLibnfs : goalsAgainstEarlier;
    return [...compared.map((one) => speed(one, goals)), ...compared.map((one) => cpu(one, goals))];
  },
};

interface Goals {
  speed(task: Task): Goal;
  cpu(task: Task): Goal | undefined;
}

const goalsAgainstLibnfs: Goals = {
  speed: (task) => ({ ratioAtLeast: isPipelined(task) || isWrite(task) ? 1 : 0.9 }),
  cpu: (task) => (isDeep(task) ? { ratioAtMost: 1.5 } : undefined),
};

const goalsAgainstEarlier: Goals = { speed: () => noSlower, cpu: () => noMore };

const speed = ({ task, ours, yardstick }: Comparison, goals: Goals): Row =>
  toRow({
    name: task.name,
    unit: task.unit,
    values: ours.map((one) => one.perSecond),
    yardsticks: yardstick.map((one) => one.perSecond),
    goal: goals.speed(task),
  });

const cpu = ({ task, ours, yardstick }: Comparison, goals: Goals): Row =>
  toRow({
    name: `${task.name}: CPU of the client`,
    unit: 'µs',
    values: ours.map((one) => one.cpuMicroseconds),
    yardsticks: yardstick.map((one) => one.cpuMicroseconds),
    goal: goals.cpu(task),
  });
