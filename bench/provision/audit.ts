import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** The requests of one account, according to the API server's audit log. */
export interface Audit {
  /** Arguments for the API server. */
  readonly words: readonly string[];
  /** The requests since the last call, by verb and resource, such as `create persistentvolumes`. */
  taken(): Promise<ReadonlyMap<string, number>>;
}

interface Entry {
  readonly verb: string;
  readonly objectRef?: { readonly resource?: string; readonly subresource?: string };
}

export async function createAudit(folder: string, user: string): Promise<Audit> {
  const [policy, log] = [join(folder, 'audit-policy.json'), join(folder, 'audit.log')];
  await writeFile(
    policy,
    JSON.stringify({
      apiVersion: 'audit.k8s.io/v1',
      kind: 'Policy',
      omitStages: ['RequestReceived', 'ResponseStarted'],
      rules: [{ level: 'Metadata', users: [user] }, { level: 'None' }],
    }),
  );
  let read = 0;
  return {
    words: [`--audit-policy-file=${policy}`, `--audit-log-path=${log}`, '--audit-log-mode=batch'],
    taken: async () => {
      const lines = (await readFile(log, 'utf8')).split('\n').slice(0, -1);
      const counts = new Map<string, number>();
      for (const line of lines.slice(read)) {
        const { verb, objectRef } = JSON.parse(line) as Entry;
        const what = [objectRef?.resource ?? '', objectRef?.subresource].filter((part) => part !== undefined).join('/');
        counts.set(`${verb} ${what}`, (counts.get(`${verb} ${what}`) ?? 0) + 1);
      }
      read = lines.length;
      return counts;
    },
  };
}
