/** One right, and its purpose. */
export interface RbacRule {
  /** The API group; empty: the core group. */
  readonly group: string;
  readonly resource: string;
  /** Only objects with these names. */
  readonly names?: readonly string[];
  readonly verbs: readonly string[];
  readonly why: string;
  /** Undefined: always. */
  readonly when?: keyof typeof conditions;
}

/** The condition for Helm, and for documentation. */
export const conditions = {
  certificateOwn: { helm: 'not .Values.tls.secretName', text: 'Only without `tls.secretName`.' },
  certificateGiven: { helm: '.Values.tls.secretName', text: 'Only with `tls.secretName`.' },
} as const;

export const ownNamespace = 'own';

export interface RbacRole {
  readonly name: string;
  readonly title: string;
  readonly about: string;
  readonly where: 'cluster' | typeof ownNamespace;
  /** The subject: a service account of Stowage's, or the subjects in a value of the chart. Neither: nobody by default. */
  readonly account?: string;
  readonly value?: string;
  readonly extraLabels?: Readonly<Record<string, string>>;
  readonly rules: readonly RbacRule[];
}

export const [core, storage, stowage, discovery] = ['', 'storage.k8s.io', 'stowage.dev', 'discovery.k8s.io'];
export const getListWatch = ['get', 'list', 'watch'];
export const listWatch = ['list', 'watch'];
